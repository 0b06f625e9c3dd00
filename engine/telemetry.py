"""ONNX Runtime's telemetry, which its wheels turn on: off in every process of this program."""

import os
from typing import Final

SWITCH: Final = "ORT_DISABLE_TELEMETRY"


def disable_telemetry() -> None:
    """Must come before ONNX Runtime is loaded, which decides then; processes started later inherit
    it. No value that the user set counts, as any but a few would mean that data is sent.
    """
    os.environ[SWITCH] = "1"
