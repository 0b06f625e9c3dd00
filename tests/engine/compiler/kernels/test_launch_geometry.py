"""Grids, blocks and shared memory of every launch, on a GPU that is only described."""

import json
from collections.abc import Iterator
from math import prod

import pytest
from support.described_gpus import GPUS, KIB
from support.gpu_networks import ODD_GRAPHS, random_network
from support.launch_geometry import (
    PRECISIONS,
    RECORD,
    SIZES,
    SPECS,
    launched,
    lowered,
    summary,
    title,
    usual_programs,
)

from cuda_cyclegan.engine.benchmark.layer_times import work_of
from cuda_cyclegan.engine.compiler.gpu_properties import WGMMA_CAPABILITY, GpuProperties
from cuda_cyclegan.engine.compiler.kernels.launch import Launch
from cuda_cyclegan.engine.compiler.kernels.table import KERNELS
from cuda_cyclegan.engine.compiler.program.fitting import ProgramRequest
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.compiler.steps import Step, is_planned

RECORDED = json.loads(RECORD.read_text())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", SPECS)
def test_launches_on_an_h200_are_those_that_were_measured(name, precision):
    for wanted in usual_programs(name, precision):
        assert summary(lowered(name, wanted)) == RECORDED[title(name, wanted)], (
            "launches differ from the measured ones; measure them on a GPU, then record them anew: "
            "cd tests && python -m support.launch_geometry"
        )


def launches_on(gpu: GpuProperties) -> Iterator[tuple[Step, Launch]]:
    for name in SPECS:
        for (patch, batch), precision in zip(SIZES[name.split()[0]], ("fp16", "fp32"), strict=True):
            wanted = ProgramRequest(patch, batch, precision, gpu)
            for step, launches in launched(lowered(name, wanted)):
                yield from ((step, launch) for launch in launches)
    for graph in ODD_GRAPHS.values():
        wanted = ProgramRequest((64, 80, 96), 2, "fp16", gpu)
        program = lower(random_network(graph, 0), wanted.fastest, gpu)
        for step, launches in launched(program):
            yield from ((step, launch) for launch in launches)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_launches_are_of_kernels_of_the_gpu_keep_to_its_limits_and_fill_it(gpu):
    """A fifth of a GPU at most may stay empty if each block has a whole share of the work."""
    for step, launch in launches_on(gpu):
        spec = KERNELS[launch.source]
        assert launch.kernel in spec.instances or not spec.instances
        assert not spec.needs_wgmma or gpu.capability == WGMMA_CAPABILITY
        across, *others = launch.grid
        blocks = prod(launch.grid)
        assert 0 < across < 2**31
        assert all(0 < size < 2**16 for size in others)
        assert 0 < prod(launch.block) <= 1024
        assert launch.shared <= gpu.shared_per_block
        if launch.cooperative:
            assert blocks <= max(gpu.multiprocessors, others[0])
            is_one_each = blocks <= gpu.multiprocessors
            assert not is_one_each or gpu.resident_blocks(launch.shared) == 1
        if is_planned(step) or launch.kernel in ("conclude", "conclude_groups"):
            continue  # as many blocks as there is work, on any GPU
        if work_of(step).bytes < 64 * KIB * gpu.multiprocessors:
            continue
        if launch.cooperative:
            assert blocks + others[0] > gpu.multiprocessors, (step, launch)
        else:
            assert blocks >= 0.8 * gpu.multiprocessors, (step, launch)
