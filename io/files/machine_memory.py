"""How much memory the machine has."""

import os
import sys


def physical_memory() -> int | None:
    """Bytes; None where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def memory_of_machine() -> int:
    """Bytes, or no limit where the system does not tell."""
    return physical_memory() or sys.maxsize
