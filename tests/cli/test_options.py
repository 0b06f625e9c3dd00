"""Option values that need more than a type."""

import pytest
import typer

from cuda_cyclegan.cli.options import parsed_size


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
