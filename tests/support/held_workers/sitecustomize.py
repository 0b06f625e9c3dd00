"""Module on PYTHONPATH: worker processes stand still at their start until a file is there."""

import os
import sys
import time
from pathlib import Path

if any("run.process" in word for word in sys.orig_argv):
    launcher = os.getppid()
    while os.getppid() == launcher and not Path(os.environ["GO_ON"]).exists():
        time.sleep(0.02)
