"""Engine options of the user; imports nothing heavy, for the command line."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Precision: TypeAlias = Literal["fp16", "bf16", "tf32", "fp32"]
"""Format in which numbers are stored and multiplied; sums are always fp32. tf32: fp32 with a short
mantissa.
"""

BF16_CAPABILITY = (8, 0)
"""First compute capability of a GPU with bf16 and tf32."""

Inference: TypeAlias = Literal["patches", "volume"]
"""patches: overlapping ones, which are blended; volume: whole-volume inference."""

Blend: TypeAlias = Literal["gaussian", "linear", "constant", "hann", "crop"]
"""Weights of overlapping patches.

gaussian: a Gaussian around the patch's middle. linear: rises over the voxels shared with the
neighbour. constant: the mean. hann: a Hann window. crop: each patch up to half the overlap, nothing
beyond it (TorchIO).
"""

Effort: TypeAlias = Literal["auto", "quick", "full", "off"]
"""Tuning level of the convolutions of a network.

off: take the first plan that runs. quick: time the plans that cuDNN's heuristics rank first. full:
time every plan, and custom kernels against them. auto: take what earlier starts have found, else as
off, but quick for a convolution that does much of the work; a batch that ends leaves some time to
find more for later starts (`Tunable`).
"""

TUNING_SECONDS = 60.0
"""Time limit of a tuning search; the best result by then is kept."""


Progress: TypeAlias = Callable[[str, float | None], None]
"""Callback for what is being measured and the share of the work that is done; 1 at the end.

None as the share marks a sentence that the user should keep: that a plan is rejected.
"""


def ignore_progress(_what: str, _share: float | None) -> None:
    """Progress callback that does nothing."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Tuning level, time limit in seconds for all convolutions together, and progress callback.

    effort: how many plans are tried. seconds: that limit. progress: called for each layer.
    """

    effort: Effort = "full"
    seconds: float = TUNING_SECONDS
    progress: Progress = ignore_progress


@dataclass(frozen=True, slots=True)
class CudaLimits:
    """Limits of a program on a device. None of them changes a voxel beyond rounding.

    vram: bytes, without the CUDA context of about half a GiB; None for all that is free. tune:
    tuning level if no plans are known yet, and tune_seconds: its time limit. batch: patches in one
    run at most; None for the fastest. threads: of a network on the CPU; None for one per core that
    this process may use.
    """

    vram: int | None = None
    tune: Effort = "auto"
    tune_seconds: float = TUNING_SECONDS
    batch: int | None = None
    threads: int | None = None


_DEVICE = re.compile(r"auto|cpu|(?:cuda|gpu)(?::(\d+(?:,\d+)*))?|(\d+(?:,\d+)*)|onnxruntime:\w+")


def device_name(text: str) -> str:
    """auto, cpu, cuda, cuda:0, cuda:0,1 or onnxruntime:PROVIDER.

    gpu stands for cuda, and a number for the GPU of that index, once for each process on it.

    Raises ValueError for all else.
    """
    found = _DEVICE.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text!r} is not one of auto, cpu, gpu, cuda, cuda:N, cuda:N,M and "
            "onnxruntime:PROVIDER."
        )
    if numbers := found[1] or found[2]:
        return f"cuda:{numbers}"
    return "cuda" if text == "gpu" else text


NO_LIMITS = CudaLimits()
