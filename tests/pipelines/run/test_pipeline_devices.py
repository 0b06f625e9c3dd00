"""Opening of a batch's device, and studies that do not fit it."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from support.numerics_models import FunctionGenerator
from support.pipeline_world import PipelineWorld

from cuda_cyclegan.engine.errors import DeviceMemoryError, EngineError, PrecisionOverflowError
from cuda_cyclegan.engine.generator import PatchGenerator
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.engine.options import Precision, Progress
from cuda_cyclegan.pipelines.events import DeviceOpened, Remark, Tuning


def test_a_device_that_does_not_open_ends_the_batch_with_its_own_error(
    world: PipelineWorld,
) -> None:
    @contextmanager
    def broken(_: Precision, __: Progress) -> Iterator[PatchGenerator]:
        raise EngineError("The card fell off.")
        yield

    with pytest.raises(EngineError, match="fell off"):
        world.run_opened(broken)
    assert world.made() == []


def test_the_search_for_plans_is_reported_before_the_device_is_there(world: PipelineWorld) -> None:
    @contextmanager
    def opened(_: Precision, progress: Progress) -> Iterator[FunctionGenerator]:
        progress("convolution 3x3x3", 0.0)
        progress("cuDNN plan eng7 is not used on this GPU.", None)
        progress("", 1.0)
        yield FunctionGenerator()

    world.run_opened(opened)
    reported = [
        event for event in world.events if isinstance(event, Tuning | DeviceOpened | Remark)
    ]
    refused = Remark("cuDNN plan eng7 is not used on this GPU.")
    assert reported[:3] == [Tuning("convolution 3x3x3", 0.0), refused, Tuning("", 1.0)]
    assert isinstance(reported[3], DeviceOpened)


def test_the_generator_is_closed_when_the_batch_is_over(world: PipelineWorld) -> None:
    states: list[str] = []

    @contextmanager
    def opened(_: Precision, __: Progress) -> Iterator[FunctionGenerator]:
        states.append("open")
        yield FunctionGenerator()
        states.append("closed")

    world.run_opened(opened)
    assert states == ["open", "closed"]


def test_a_study_that_overflows_is_done_again_in_a_wider_precision(world: PipelineWorld) -> None:
    patches_seen: list[str] = []
    opened_now: list[str] = []

    @contextmanager
    def opened(precision: Precision, _: Progress) -> Iterator[FunctionGenerator]:
        def run(patches: FloatArray) -> FloatArray:
            assert opened_now == [precision], "a limit on device memory is for one program"
            patches_seen.append(precision)
            if precision == "fp16" and len(patches_seen) == 2:
                raise PrecisionOverflowError("A value exceeded the range of fp16.")
            return patches

        opened_now.append(precision)
        yield FunctionGenerator(run)
        opened_now.remove(precision)

    rows = world.run_opened(opened, precision="fp16")
    assert opened_now == []
    assert patches_seen == ["fp16", "fp16", "bf16", "fp16", "fp16", "fp16"]
    assert [row.status for row in rows] == ["translated"] * 5
    [reported] = [row.notes for row in rows if row.notes]
    assert reported == (
        "A value exceeded the range of fp16; the computation was repeated in bf16.",
    )
    assert rows[1].notes == reported


def test_why_a_study_was_blended_on_the_host_stands_in_its_row(world: PipelineWorld) -> None:
    class FullGenerator(FunctionGenerator):
        """Generator that could blend, but has no memory for the second study."""

        studies = 0

        def run_window(self, source: Any, _: Any, target: Any, on_patches: Any) -> list[Any]:
            FullGenerator.studies += 1
            if FullGenerator.studies == 2:
                raise DeviceMemoryError("The card is full.")
            target.values[...] = source.values
            on_patches(1)
            return []

    rows = world.run_opened(lambda *_: nullcontext(FullGenerator()))
    assert [row.status for row in rows] == ["translated"] * 5
    assert [len(row.notes) for row in rows] == [0, 1, 0, 0, 0]
    assert rows[1].notes == (
        "It was cut and blended on the host, which is slower. The card is full.",
    )


def test_memory_that_runs_out_in_the_middle_fails_the_study(world: PipelineWorld) -> None:
    class FullGenerator(FunctionGenerator):
        def run_window(
            self, _source: Any, _window: Any, _target: Any, on_patches: Any
        ) -> list[Any]:
            on_patches(1)
            raise DeviceMemoryError("The card is full.")

    rows = world.run_opened(lambda *_: nullcontext(FullGenerator()))
    assert {row.status for row in rows} == {"failed"}
