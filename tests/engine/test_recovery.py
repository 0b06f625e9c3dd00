"""A study is begun again after an overflow, and only then."""

from contextlib import contextmanager

import pytest

from cuda_cyclegan.engine.errors import CudaError, PrecisionOverflowError
from cuda_cyclegan.engine.recovery import with_recovery


class Device:
    """Opens generators that fail as told, one failure after another."""

    def __init__(self, *failures: Exception | None) -> None:
        self.failures = list(failures)
        self.opened: list[str] = []
        self.closed = 0

    @contextmanager
    def open(self, precision):
        self.opened.append(precision)
        try:
            yield precision
        finally:
            self.closed += 1

    def work(self, generator):
        if self.failures and (failure := self.failures.pop(0)):
            raise failure
        return f"done in {generator}"


def test_an_overflow_is_done_again_in_the_next_wider_precision():
    device = Device(PrecisionOverflowError("Too large."), PrecisionOverflowError("Too large."))
    outcome = with_recovery("fp16", "fp16", device.open, device.work)
    assert (outcome.result, outcome.precision) == ("done in fp32", "fp32")
    assert device.opened == ["bf16", "fp32"]
    assert outcome.notes[0] == "Too large. It was done again in bf16."
    assert device.closed == 2


def test_an_overflow_of_the_widest_precision_is_raised():
    device = Device(PrecisionOverflowError("Too large."))
    with pytest.raises(PrecisionOverflowError):
        with_recovery("fp32", "fp32", device.open, device.work)


def test_other_errors_pass_through():
    device = Device(CudaError("cuLaunchKernel", "ILLEGAL_ADDRESS", "start again"))
    with pytest.raises(CudaError):
        with_recovery("fp16", "fp16", device.open, device.work)
    assert device.opened == []
