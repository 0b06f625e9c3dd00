"""A generator as a typed layer graph, and the runtimes that turn patches into patches.

Knows arrays, weights and devices; may import io.files. Must never know scans, studies, files of
scans, or the command line.
"""

from .telemetry import disable_telemetry

disable_telemetry()  # here, since each of our processes imports this package before ONNX Runtime
