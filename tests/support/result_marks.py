"""Marks of synthetic results in their own files."""

from pathlib import Path

from cuda_cyclegan.io.labels import read_labels
from cuda_cyclegan.io.volume import SyntheticMark


def read_mark(file: Path) -> SyntheticMark | None:
    """Return the mark of a result in a file's header; None for a real scan."""
    return read_labels(file).mark
