"""The launches of whole generators: kernels, grids, blocks and shared memory.

    cd tests
    python -m support.launch_geometry

records those on an H200, with which tests compare, in RECORD. Needs no GPU; but measure the change
on one first (`tests/benchmarks/network_times.py`).
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from support.described_gpus import H200
from support.zero_weights import zero_network

from cuda_cyclegan.engine.compiler.kernels.launch import Launch
from cuda_cyclegan.engine.compiler.kernels.step_launches import launches, scratch_bytes
from cuda_cyclegan.engine.compiler.lowered import Lowered
from cuda_cyclegan.engine.compiler.program.fitting import ProgramRequest
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.compiler.steps import Step
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import Triple
from cuda_cyclegan.engine.options import Precision

RECORD = Path(__file__).parents[1] / "engine/compiler/kernels/h200_launches.json"
"""`summary` of each program on an H200, by `title`."""

SPECS: Mapping[str, ResNetSpec | UNetSpec] = {
    "ResNet 32": ResNetSpec(1, 1, 32, 1),
    "ResNet 64": ResNetSpec(1, 1, 64, 1),
    "U-Net 32": UNetSpec(1, 1, 32, 5),
    "U-Net 64": UNetSpec(1, 1, 64, 5),
}
PRECISIONS: tuple[Precision, ...] = ("fp16", "bf16", "tf32", "fp32")
SIZES: Mapping[str, tuple[tuple[Triple, int], ...]] = {
    "ResNet": (((128, 128, 128), 1), ((80, 104, 112), 2)),
    "U-Net": (((128, 128, 128), 1), ((96, 160, 224), 2)),
}
"""Patch and batch of a family; the second of extents that are no powers of two."""


@cache
def network(name: str) -> Network:
    """Weights of zeros: geometry depends on their shapes alone."""
    return zero_network(build(SPECS[name]))


def lowered(name: str, wanted: ProgramRequest) -> Lowered:
    """The fastest layout for what is wanted."""
    return lower(network(name), wanted.fastest, wanted.gpu)


def launched(program: Lowered) -> Iterator[tuple[Step, list[Launch]]]:
    """Each step and its launches; the convolutions that cuDNN may do too, as custom kernels."""
    for step in program.steps:
        yield step, launches(step, lambda _: 256, program.gpu, 256)


def summary(program: Lowered) -> dict[str, int]:
    """Count each launch, in the order of the first ones."""
    return dict(
        Counter(
            f"{launch.kernel} grid {_times(launch.grid)} block {_times(launch.block)} "
            f"shared {launch.shared} scratch {scratch_bytes(step, program.gpu)}"
            for step, launches in launched(program)
            for launch in launches
        )
    )


def title(name: str, wanted: ProgramRequest) -> str:
    """Name, precision, patch and batch of a program."""
    return f"{name} {wanted.precision} {_times(wanted.patch)} x {wanted.batch}"


def _times(extents: Triple) -> str:
    return "x".join(map(str, extents))


def usual_programs(name: str, precision: Precision) -> Iterator[ProgramRequest]:
    """Programs of a generator on an H200 whose launches are recorded."""
    for patch, batch in SIZES[name.split()[0]]:
        yield ProgramRequest(patch, batch, precision, H200)


def main() -> None:
    """Record the launches of all generators."""
    recorded = {
        title(name, wanted): summary(lowered(name, wanted))
        for name in SPECS
        for precision in PRECISIONS
        for wanted in usual_programs(name, precision)
    }
    RECORD.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
