"""Name and version of this program for results and reports."""

from functools import cache


@cache  # saves a search through all packages, twice per study
def program_version() -> str:
    """Return the version of this program."""
    from importlib.metadata import version  # late: searches and plans do not need it

    return version("cuda-cyclegan")
