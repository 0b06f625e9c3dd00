"""A folder of scans through MONAI's sliding_window_inference, as a PyTorch user would do it.

Run by batch_against_monai.py in a process of its own; the last line printed is its JSON.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import torch
from monai.inferers import sliding_window_inference
from support.bench_command import extents
from support.torch_generators import padded_resnet
from torch import Tensor, nn

from cuda_cyclegan.engine.model.model_file import load_model


class Way:
    """Way of an array through the network; channels_last and half if it is compiled."""

    def __init__(self, module: nn.Module, device: str, compile_mode: str | None) -> None:
        self._device = device
        self._is_half = compile_mode is not None
        self._run: Any = module.to(device)
        if compile_mode is not None:
            torch.backends.cudnn.benchmark = True
            placed = module.half().to(memory_format=torch.channels_last_3d)
            self._run = torch.compile(placed, mode=compile_mode, dynamic=False)

    def __call__(self, patches: Tensor) -> Tensor:
        if not self._is_half:
            return self._run(patches)
        shaped = patches.to(torch.float16, memory_format=torch.channels_last_3d)
        return self._run(shaped).float()

    def translate(self, voxels: "np.ndarray[Any, Any]", asked: argparse.Namespace) -> Tensor:
        """Network intensities [i, j, k] of what comes out, in float32 on the device."""
        array = torch.from_numpy(voxels).to(self._device).float()[None, None] / asked.radius
        made: Any = sliding_window_inference(
            array.clamp(-1, 1),
            asked.patch,
            asked.patches_at_once,
            self,
            overlap=asked.overlap,
            mode="gaussian",
            sigma_scale=0.125,
        )
        return made[0, 0]


def module_of(model: Path, width: int, blocks: int) -> nn.Module:
    """The model's network in torch; both list their layers in the same order."""
    network = load_model(model).network
    module = padded_resnet(width=width, blocks=blocks).eval()
    arrays = [network.weights[name] for name, _ in network.graph.weight_shapes()]
    states = zip(module.state_dict(), arrays, strict=True)
    module.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in states})
    return module


def batch(way: Way, scans: list[Path], asked: argparse.Namespace) -> dict[str, float]:
    """Seconds of the whole loop, and of its parts."""
    seconds = dict.fromkeys(("read", "infer", "write"), 0.0)
    begin = time.perf_counter()
    for scan in scans:
        marks = [time.perf_counter()]
        image: Any = nibabel.load(scan)
        voxels = np.asarray(image.dataobj)
        marks.append(time.perf_counter())
        made = way.translate(voxels, asked) * asked.radius
        stored = made.round().to(torch.int16).cpu().numpy()
        marks.append(time.perf_counter())
        result = nibabel.Nifti1Image(stored, image.affine, image.header)
        result.to_filename(asked.results / scan.name)
        marks.append(time.perf_counter())
        for number, name in enumerate(seconds):
            seconds[name] += marks[number + 1] - marks[number]
    return {"loop": time.perf_counter() - begin, **seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("--scans", "--model", "--results"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--compile", help="mode of torch.compile; not compiled and fp32 without")
    for name in ("--studies", "--width", "--blocks", "--patches-at-once"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--patch", type=extents, required=True)
    for name in ("--overlap", "--radius"):
        parser.add_argument(name, type=float, required=True)
    asked = parser.parse_args()
    asked.results.mkdir()
    scans = sorted(asked.scans.iterdir())[: asked.studies]
    first: Any = nibabel.load(scans[0])
    voxels = np.asarray(first.dataobj)
    with torch.inference_mode():
        torch.backends.cudnn.allow_tf32 = False
        exact = Way(module_of(asked.model, asked.width, asked.blocks), asked.device, None)
        np.save(asked.results / "exact.npy", exact.translate(voxels, asked).cpu().numpy())
        del exact
        torch.backends.cudnn.allow_tf32 = True
        module = module_of(asked.model, asked.width, asked.blocks)
        way = Way(module, asked.device, asked.compile)
        begin = time.perf_counter()
        for _ in range(2):
            way.translate(voxels, asked).cpu()
        warm_up = time.perf_counter() - begin
        seconds = batch(way, scans, asked)
    print(json.dumps({"studies": len(scans), "warm_up": warm_up, "seconds": seconds}))


if __name__ == "__main__":
    main()
