"""How much memory the machine has, and this process of it."""

import os
import sys
import time
from functools import lru_cache

from .control_groups import memory_granted


def physical_memory() -> int | None:
    """Bytes; None where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def address_space_limit() -> int | None:
    """Bytes of address space that this process may have, as `ulimit -v` sets it; None for all."""
    try:
        from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit
    except ImportError:  # Windows
        return None
    limit, _ = getrlimit(RLIMIT_AS)
    return None if limit == RLIM_INFINITY else limit


def most_memory() -> int:
    """Bytes that this process can have: the machine's, or what its container, job or `ulimit -v`
    leaves it of that.

    No limit where the system does not tell. Looked up once a second at most: several files of the
    system tell, and a search asks for every scan.
    """
    return most_memory_in(int(time.monotonic()))


@lru_cache(maxsize=1)
def most_memory_in(_second: int) -> int:
    """As `most_memory`, in a second of the system's clock."""
    known = (physical_memory(), memory_granted(), address_space_limit())
    return min((each for each in known if each is not None), default=sys.maxsize)
