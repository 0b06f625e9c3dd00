"""This program as results and reports name it."""

from functools import cache
from importlib.metadata import version


@cache  # which saves a look through all packages, twice a study
def program_version() -> str:
    """Version of this program."""
    return version("cuda-cyclegan")
