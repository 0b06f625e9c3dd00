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


def most_memory() -> int:
    """Bytes that this process can have: the machine's, or its container's or job's share of it.

    No limit where the system does not tell. Looked up once a second at most: several files of the
    system tell, and a search asks for every scan.
    """
    return most_memory_in(int(time.monotonic()))


@lru_cache(maxsize=1)
def most_memory_in(_second: int) -> int:
    """As `most_memory`, in a second of the system's clock."""
    known = (physical_memory(), memory_granted())
    return min((each for each in known if each is not None), default=sys.maxsize)
