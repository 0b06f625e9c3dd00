"""Time of day that a trial sets, for all programs that it starts: wall_clock.c."""

import mmap
import os
import struct
import subprocess
import time
from datetime import datetime
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
VARIABLE = "WALL_CLOCK"


def environment(folder: Path, zone: str) -> dict[str, str]:
    """Compile the library in a folder; the variables with which programs have its clock.

    The folder is opened for other accounts, as a database server has one of its own.
    """
    library, file = folder / "wall_clock.so", folder / "wall_clock"
    warnings = ("-Wall", "-Wextra", "-Werror")
    subprocess.run(["gcc", "-shared", "-fPIC", *warnings, "-o", library, SOURCE], check=True)
    file.write_bytes(bytes(8))
    folder.chmod(0o755)
    return {"LD_PRELOAD": str(library), VARIABLE: str(file), "TZ": zone}


class WallClock:
    """The clock of this process, which must have been started with `environment`."""

    def __init__(self) -> None:
        with Path(os.environ[VARIABLE]).open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), 8)

    def set(self, moment: datetime) -> None:
        """Let it be this time now, everywhere."""
        [offset] = struct.unpack("q", self._offset)
        ahead = int((moment.timestamp() - time.time()) * 1e9)
        self._offset[:] = struct.pack("q", offset + ahead)
