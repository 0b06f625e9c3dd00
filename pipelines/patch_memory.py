"""Whether the host's memory suffices for a network on patches of a size, told before a batch."""

from ..engine.network.flops import held_bytes
from ..engine.network.graph import Graph
from ..engine.network.layers import Triple
from ..engine.network.patches import largest_patch
from .errors import SettingsError


def check_patch_memory(graph: Graph, patch: Triple, free: int) -> None:
    """Raise SettingsError for a patch whose tensors alone are more than the bytes that are free.

    The error names the largest patch that leaves half of them to all else.
    """
    needed = held_bytes(graph, patch)
    if needed <= free:
        return
    fitting = largest_patch(graph, patch, lambda one: held_bytes(graph, one) <= free // 2)
    advice = f"setting patch={','.join(map(str, fitting))} fits" if fitting else "no patch fits"
    raise SettingsError(
        f"Patches of {'x'.join(map(str, patch))} need {_gib(needed)} GiB of memory, and "
        f"{_gib(free)} GiB are free; {advice}."
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f}"
