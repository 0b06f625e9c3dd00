"""Option values that need more than a type."""

import pytest
import typer

from cuda_cyclegan.cli.options.groups import LimitOptions
from cuda_cyclegan.cli.options.values import (
    checked_device,
    duration_from,
    parsed_duration,
    parsed_overlap,
    parsed_size,
)
from cuda_cyclegan.engine.options import CudaLimits


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 4 << 30), ("800 MB", 800_000_000), ("1.5GB", 1_500_000_000), ("512MiB", 512 << 20)],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parsed_size("--vram-limit", text) == size


@pytest.mark.parametrize("text", ["4", "0GiB", "-1GB", "4 gib", "GiB", "1e3GB", "9999999GB"])
def test_other_sizes_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="4GiB"):
        parsed_size("--vram-limit", text)


def test_no_size_is_no_limit() -> None:
    assert parsed_size("--vram-limit", None) is None


@pytest.mark.parametrize(
    ("text", "share"),
    [("0.5", 0.5), ("50%", 0.5), ("33.3 %", 0.333), ("90%", 0.9), ("0%", 0.0), (0.25, 0.25)],
)
def test_an_overlap_is_a_fraction_or_exactly_its_percentage(
    text: str | float, share: float
) -> None:
    assert parsed_overlap(text) == share


@pytest.mark.parametrize("text", ["50", "91%", "-1%", "0.91", "nan", "inf%", "%", "half", ""])
def test_other_overlaps_are_refused_with_both_forms(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"from 0 to 0\.9 .* from 0% to 90% such as 50%"):
        parsed_overlap(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30 s", 30.0), ("1.5min", 90.0), ("12 h", 43_200.0), ("7d", 604_800.0)],
)
def test_durations_are_the_same_in_options_and_routes(text: str, seconds: float) -> None:
    assert parsed_duration(text) == duration_from(0)(text) == seconds


@pytest.mark.parametrize(("number", "seconds"), [("90", 90.0), ("1e3", 1000.0), (0.2, 0.2)])
def test_only_options_take_seconds_without_a_unit(number: str | float, seconds: float) -> None:
    assert duration_from(0)(number) == seconds
    with pytest.raises(typer.BadParameter, match="'30 s'"):
        parsed_duration(str(number))


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "0.5", "0.5 s", "3 weeks", "-1 s", ""])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a duration"):
        duration_from(1)(text)


@pytest.mark.parametrize(("text", "batch"), [("auto", None), ("1", 1), ("16", 16)])
def test_a_batch_is_a_number_or_left_to_the_program(text: str, batch: int | None) -> None:
    use = LimitOptions(vram_limit="4GiB", batch=text, tune="quick", tune_seconds=10.0)
    assert use.limits() == CudaLimits(4 << 30, "quick", 10.0, batch)


@pytest.mark.parametrize("text", ["0", "-1", "2.5", "many", "100", ""])
def test_other_batches_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="neither auto nor a number from 1 to 99"):
        LimitOptions(batch=text).limits()


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("auto", "auto"),
        ("cpu", "cpu"),
        ("gpu", "cuda"),
        ("cuda", "cuda"),
        ("0", "cuda:0"),
        ("0,1", "cuda:0,1"),
        ("gpu:1", "cuda:1"),
        ("cuda:2,3", "cuda:2,3"),
        ("onnxruntime:CoreML", "onnxruntime:CoreML"),
    ],
)
def test_a_device_is_named_as_people_name_it(text: str, device: str) -> None:
    assert checked_device(text) == device


@pytest.mark.parametrize(
    "text",
    ["", "GPU", "cuda:", "cuda0", "0,", "cpu:0", "-1", "onnxruntime", "onnxruntime:", "CoreML"],
)
def test_other_devices_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="not one of auto, cpu, gpu, cuda"):
        checked_device(text)
