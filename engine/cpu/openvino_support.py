"""OpenVINO's capabilities on this machine, and the work for which it pays off, without importing
it.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..network.graph import Graph
    from ..network.layers import Triple


_BF16_FLAGS = frozenset({"amx_bf16", "avx512_bf16"})

_LEAST_FLOPS = 1 << 30
"""Least FLOP of a patch. OpenVINO opens half a second later than ONNX Runtime: as much as some 50
such patches gain on two cores.
"""


def is_installed() -> bool:
    """Return whether there is a wheel of OpenVINO for this machine."""
    return find_spec("openvino") is not None


def has_bf16() -> bool:
    """Return whether OpenVINO is installed and the processor has AMX or AVX512-BF16.

    Only Linux reports this without OpenVINO.
    """
    if not is_installed():
        return False
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            # The first core's will do: the system takes long over a hundred cores.
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return False
    return not _BF16_FLAGS.isdisjoint(flags.split())


def pays(graph: "Graph", patch: "Triple") -> bool:
    """Return whether patches of these extents (D, H, W) are worth opening OpenVINO."""
    from ..network.graph_analysis import flops

    return is_installed() and flops(graph, patch) >= _LEAST_FLOPS
