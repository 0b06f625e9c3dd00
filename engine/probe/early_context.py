"""A card's context, made in a thread while the program still loads its other libraries."""

import ctypes
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

from .cards import driver_library


@contextmanager
def early_context(choose: Callable[[], int | None], load: Callable[[], object]) -> Generator[None]:
    """Have the driver make the primary context of a card during the block, and keep it so long.

    That takes a fifth of a second, and nothing of Python's. choose: the card's index, or None for
    no context; called in the thread. load: loads what opens the card, called there once it has its
    context. What fails here fails again where the card is opened, which tells of it.
    """
    kept: list[tuple[Any, int]] = []

    def begin() -> None:
        with suppress(Exception):
            kept.extend(_retained(choose()))
            if kept:
                load()

    thread = threading.Thread(target=begin, name="context", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        for library, device in kept:
            library.cuDevicePrimaryCtxRelease_v2(device)


def _retained(index: int | None) -> list[tuple[Any, int]]:
    """The driver, and its number of the device whose context it keeps; nothing where it cannot."""
    library = None if index is None else driver_library()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if library is None or library.cuDeviceGet(ctypes.byref(device), index):
        return []
    if library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        return []
    return [(library, device.value)]
