"""Module on PYTHONPATH: worker processes stand still at their start until a file is unlocked."""

import fcntl
import os
import sys
from pathlib import Path

if any("run.process" in word for word in sys.orig_argv):
    with Path(os.environ["GO_ON"]).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
