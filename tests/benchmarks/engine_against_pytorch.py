"""The engine against every PyTorch mode, in one process on one card.

    PYTHONPATH=tests python tests/benchmarks/engine_against_pytorch.py
        [--cases all|main|others|unets] [--output FILE.json]

What `cuda-cyclegan bench --against pytorch` does for one network and precision, for many, with the
module of a training repository and with errors against fp32. Both start from patches on the device
and end with translated patches on the device. Memory is that of the tensors: PyTorch's allocator
peak, and the engine's arena with its weights; context and library code are the same for both.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.torch_generators import UNet, padded_resnet
from torch import Tensor, nn

from cuda_cyclegan.engine.benchmark import gpu as cuda_bench
from cuda_cyclegan.engine.benchmark import pytorch as torch_bench
from cuda_cyclegan.engine.benchmark.alternatives import EAGER_DEFAULT, EAGER_HALF, MODES, Mode
from cuda_cyclegan.engine.benchmark.gpu import measure_ceilings
from cuda_cyclegan.engine.benchmark.measurement import Budget, Latency
from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
from cuda_cyclegan.engine.model.reference import relative_error
from cuda_cyclegan.engine.network.architectures import ResNetSpec, Spec, UNetSpec, build
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.graph_analysis import flops
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.engine.options import SearchSettings

RESULT = Path(__file__).parent / "results" / "engine_against_pytorch.json"
INPUTS = 4
ARITHMETICS = ("fp16", "tf32", "fp32")


@dataclass(frozen=True, slots=True)
class Case:
    """A ResNet of some blocks, or a U-Net of some levels, on patches of some shape."""

    width: int
    patch: tuple[int, int, int] = (128, 128, 128)
    batch: int = 1
    blocks: int = 9
    arithmetics: tuple[str, ...] = ("fp16",)
    levels: int | None = None

    @property
    def name(self) -> str:
        extents = "x".join(map(str, self.patch))
        depth = f"{self.levels} levels" if self.levels else f"{self.blocks} blocks"
        return f"ngf {self.width}, {depth}, {extents}, batch {self.batch}"

    def generator(self) -> tuple[Spec, nn.Module]:
        """The same network for the engine and for PyTorch."""
        if self.levels:
            return UNetSpec(1, 1, self.width, self.levels), UNet(1, 1, self.levels, self.width)
        spec = ResNetSpec(1, 1, self.width, self.blocks, padding="reflect")
        return spec, padded_resnet(width=self.width, blocks=self.blocks)


MAIN = (Case(32, arithmetics=ARITHMETICS), Case(64, arithmetics=ARITHMETICS))
OTHERS = (
    Case(32, batch=4),
    Case(64, batch=4),
    Case(32, (96, 96, 96)),
    Case(64, (96, 96, 96)),
    Case(32, (192, 192, 96)),
    Case(64, (192, 192, 96)),
)
UNETS = tuple(Case(width, batch=batch, levels=5) for batch in (1, 4) for width in (32, 64))


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds of one launch of a batch of patches, peak bytes, and the error against fp32.

    allocated: None where a CUDA graph runs in a pool of its own.
    """

    median: float
    p5: float
    p95: float
    allocated: int | None
    reserved: int
    error: float

    @classmethod
    def of(cls, latency: Latency, allocated: int | None, reserved: int, error: float) -> "Row":
        return cls(latency.median, latency.p5, latency.p95, allocated, reserved, error)


def main() -> None:
    arguments = _arguments()
    torch.zeros(1, device="cuda")  # cuDNN does not outlive the context that it was first used in
    cases = {"all": MAIN + OTHERS, "main": MAIN, "others": OTHERS, "unets": UNETS}[arguments.cases]
    ceilings = measure_ceilings(0, "fp16", 4 << 30)
    assert ceilings is not None
    record: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "card": torch.cuda.get_device_name(),
        "versions": versions(),
        "matrix_flops": ceilings.flops,
        "cases": [],
    }
    for case in cases:
        record["cases"].append(measure(case, ceilings.flops, Budget(arguments.seconds, False)))
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(record, indent=2) + "\n")


def measure(case: Case, flops_a_second: float, budget: Budget) -> dict[str, Any]:
    """Every mode that has the case's arithmetics, and the engine in them."""
    spec, module = case.generator()
    network = network_of(spec, module.eval())
    shape = (case.batch, 1, *case.patch)
    inputs = [torch.rand(shape, device="cuda") * 2 - 1 for _ in range(INPUTS)]
    reference = exact(module, inputs[0])
    floor = case.batch * flops(network.graph, case.patch) / flops_a_second
    print(f"\n{case.name}: {floor * 1e3:.2f} ms at the card's matrix rate", flush=True)
    rows: dict[str, Row] = {}
    for mode in MODES:
        if mode.arithmetic in case.arithmetics or mode == EAGER_DEFAULT:
            rows[mode.name] = pytorch(mode, module, inputs, reference, budget)
            show(mode.name, rows[mode.name])
    ours: dict[str, Row] = {}
    for arithmetic in case.arithmetics:
        ours[arithmetic] = engine(network, case, arithmetic, inputs[0], reference, budget)
        show(f"cuda-cyclegan {arithmetic}", ours[arithmetic])
    ratios = dict(compared(rows, ours, floor))
    for name, ratio in ratios.items():
        print(f"  {name}: {ratio:.3f}", flush=True)
    return {
        "case": asdict(case),
        "floor_seconds": floor,
        "pytorch": {name: asdict(row) for name, row in rows.items()},
        "cuda_cyclegan": {name: asdict(row) for name, row in ours.items()},
        "ratios": ratios,
    }


def pytorch(
    mode: Mode, module: nn.Module, inputs: Sequence[Tensor], reference: FloatArray, budget: Budget
) -> Row:
    """One PyTorch mode."""
    found = torch_bench.measure(mode, module, inputs, budget)
    assert found.reserved is not None
    error = relative_error(found.output.numpy(), reference)
    return Row.of(found.latency, found.allocated, found.reserved, error)


def engine(
    network: Network,
    case: Case,
    arithmetic: str,
    patches: Tensor,
    reference: FloatArray,
    budget: Budget,
) -> Row:
    """The engine in one precision."""
    options = CudaOptions(arithmetic, search=SearchSettings("full"))
    outputs: list[FloatArray] = []
    found = cuda_bench.measure_on_gpu(
        network, options, case.batch, patches.cpu().numpy(), budget, outputs.append
    )
    size = found.memory.planned
    assert size is not None
    return Row.of(found.latency, size, size, relative_error(outputs[0], reference))


def compared(
    rows: dict[str, Row], ours: dict[str, Row], floor: float
) -> Iterator[tuple[str, float]]:
    """Ours over theirs, below 1 is faster or smaller."""
    for arithmetic, own in ours.items():
        same = [rows[mode.name].median for mode in MODES if mode.arithmetic == arithmetic]
        yield f"time, {arithmetic} / best PyTorch {arithmetic}", own.median / min(same)
    if own := ours.get("fp16"):
        half = rows[EAGER_HALF.name]
        yield "time, fp16 / eager default", own.median / rows[EAGER_DEFAULT.name].median
        yield "time, fp16 / FLOPs at the matrix rate", own.median / floor
        if own.allocated and half.allocated:
            yield "bytes, fp16 / eager half", own.allocated / half.allocated


def exact(module: nn.Module, patches: Tensor) -> FloatArray:
    """The module's output in fp32 without TF32."""
    torch.backends.cudnn.allow_tf32 = False
    placed = module.cuda()
    with torch.inference_mode():
        result = placed(patches).cpu().numpy()
    module.cpu()
    torch.cuda.empty_cache()
    return result


def network_of(spec: Spec, module: nn.Module) -> Network:
    """The product's network with a torch module's weights; both list their layers in order."""
    graph = build(spec)
    names = [name for name, _ in graph.weight_shapes()]
    arrays = [np.asarray(t.detach(), np.float32) for t in module.state_dict().values()]
    weights = dict(zip(names, arrays, strict=True))
    return Network(graph, weights)


def show(name: str, row: Row) -> None:
    size = f"{(row.allocated or row.reserved) / 2**20:7.0f} MiB"
    pool = " " if row.allocated else " of its pool "
    print(f"  {name:44} {row.median * 1e3:8.3f} ms  {size}{pool} error {row.error:.1e}", flush=True)


def versions() -> dict[str, str]:
    found = {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
    for name in ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cudnn-frontend"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", choices=("all", "main", "others", "unets"), default="all")
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing for each mode")
    return parser.parse_args()


if __name__ == "__main__":
    main()
