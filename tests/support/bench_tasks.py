"""Tasks for a process of its own that end in every way there is."""

import os
import sys
import threading
from dataclasses import dataclass
from typing import Any

from cuda_cyclegan.engine.errors import DeviceMemoryError


@dataclass(frozen=True)
class Task:
    """Task that ends as `end` states."""

    end: str
    name: str = "a task"

    def run(self) -> Any:
        match self.end:
            case "crash":
                print("Segmentation fault is near", flush=True)
                os.kill(os.getpid(), 11)
            case "exit":
                print("first\nlast words", file=sys.stderr)
                os._exit(3)
            case "hang":
                threading.Event().wait()
            case "raise":
                raise RuntimeError("CUDA out of memory\nand much more")
            case "no room":
                raise DeviceMemoryError("The card is full; use smaller patches.")
        return os.getpid()
