"""Make the product run as if the system were none of POSIX: with this folder on PYTHONPATH.

What its modules import lacks what Windows lacks, and files are locked as msvcrt locks them. Nothing
else changes: libraries and tests see the system as it is. It shows what the product does without
those names, not what Windows does.
"""

import builtins
import errno
import fcntl
import os
import signal
import stat
import struct
import threading
from types import ModuleType
from typing import Any

from posix_only import ATTRIBUTES, MODULES

PRODUCT = "cuda_cyclegan"

real_import = builtins.__import__


class Without(ModuleType):
    """A module as it is at any time, but for what is absent or set apart here."""

    def __init__(self, module: ModuleType, absent: frozenset[str], **apart: Any) -> None:
        super().__init__(module.__name__)
        vars(self).update(_module=module, _absent=absent, _apart=apart)

    def __getattr__(self, name: str) -> Any:
        if name in self._absent:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return self._apart[name] if name in self._apart else getattr(self._module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._module, name)


def open_file(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
    """Open as on Windows, which opens no folders and knows no `dir_fd`."""
    if named.get("dir_fd") is not None:
        raise NotImplementedError("dir_fd unavailable on this platform")
    if os.path.isdir(path):  # noqa: PTH112
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return os.open(path, flags, *arguments, **named)


def flush_file(descriptor: int) -> None:
    """Flush as on Windows, which stores only files that are open for writing."""
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    os.fsync(descriptor)


def lock_bytes(descriptor: int, mode: int, count: int) -> None:
    """Lock as msvcrt.locking does: bytes from the file's position on, for this opening of the file
    alone.
    """
    assert stat.S_ISREG(os.fstat(descriptor).st_mode), "only files can be locked"
    place = os.lseek(descriptor, 0, os.SEEK_CUR)
    wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, place, count, 0)
    for _ in range(10 if mode == msvcrt.LK_LOCK else 1):
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
        except BlockingIOError:
            if mode == msvcrt.LK_LOCK:
                threading.Event().wait(0.01)
        else:
            return
    code = errno.EDEADLK if mode == msvcrt.LK_LOCK else errno.EACCES
    raise OSError(code, os.strerror(code))


msvcrt: Any = ModuleType("msvcrt")
vars(msvcrt).update(LK_UNLCK=0, LK_LOCK=1, LK_NBLCK=2, locking=lock_bytes)

INSTEAD = {
    "msvcrt": msvcrt,
    "os": Without(os, ATTRIBUTES["os"], name="nt", open=open_file, fsync=flush_file),
    "signal": Without(signal, ATTRIBUTES["signal"]),
}


def import_without(
    name: str,
    globals: Any = None,  # noqa: A002
    locals: Any = None,  # noqa: A002
    fromlist: Any = (),
    level: int = 0,
) -> Any:
    """Replace `__import__`: return what the product's modules get by a statement."""
    importer = str((globals or {}).get("__name__", ""))
    if level == 0 and importer.partition(".")[0] == PRODUCT:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in INSTEAD:
            return INSTEAD[name]
    return real_import(name, globals, locals, fromlist, level)


builtins.__import__ = import_without
