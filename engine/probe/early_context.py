"""A card's context, made beside the CUDA packages while the program still loads its libraries."""

import ctypes
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

from .cards import driver_library


@contextmanager
def early_context(choose: Callable[[], int | None], load: Callable[[], object]) -> Generator[None]:
    """Have the driver make the primary context of a card during the block, and keep it so long.

    That takes a fifth of a second and more, and nothing of Python's. choose: the card's index, or
    None for no context; called in a thread. load: loads what opens the card; called in another, as
    soon as there is a card. What fails here fails again where the card is opened, which tells it.
    """
    kept: list[tuple[Any, int]] = []

    def begin() -> None:
        if (index := choose()) is not None:
            loading = _started("packages", load)
            kept.extend(_retained(index))
            loading.join()

    thread = _started("context", begin)
    try:
        yield
    finally:
        thread.join()
        for library, device in kept:
            library.cuDevicePrimaryCtxRelease_v2(device)


def _started(name: str, work: Callable[[], object]) -> threading.Thread:
    """A thread at work, whose failure is nobody's business."""

    def run() -> None:
        with suppress(Exception):
            work()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def _retained(index: int) -> list[tuple[Any, int]]:
    """The driver, and its number of the device whose context it keeps; nothing where it cannot."""
    library = driver_library()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if library is None or library.cuDeviceGet(ctypes.byref(device), index):
        return []
    if library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        return []
    return [(library, device.value)]
