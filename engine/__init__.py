"""A generator as a typed layer graph, and the runtimes that turn patches into patches.

Knows arrays, weights and devices; may import io.files. Must never know scans, studies, files of
scans, or the command line.
"""

import os
from typing import Final

TELEMETRY_SWITCH: Final = "ORT_DISABLE_TELEMETRY"


def disable_telemetry() -> None:
    """Disable ONNX Runtime's telemetry, which its wheels enable, in this process and its children.

    Must run before ONNX Runtime is loaded, which reads the variable then. A value set by the user
    is overwritten, as most values would mean that data is sent.
    """
    os.environ[TELEMETRY_SWITCH] = "1"


disable_telemetry()  # here, as every process imports this package before ONNX Runtime
