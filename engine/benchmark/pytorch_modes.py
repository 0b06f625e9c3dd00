"""The ways in which a PyTorch user can run a network. Imports no torch."""

from dataclasses import dataclass, replace

from ..options import Precision


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run.

    compile_mode: of torch.compile; None runs eagerly. channels_last: memory order NDHWC. graph:
    captured once into a CUDA graph. autotune: cudnn.benchmark. name: as it is shown. arithmetic:
    precision of the convolutions.
    """

    name: str
    arithmetic: Precision
    channels_last: bool = False
    autotune: bool = True
    graph: bool = False
    compile_mode: str | None = None

    @property
    def runs_graph(self) -> bool:
        """Whether a CUDA graph runs, in whose own pool PyTorch does not count tensors."""
        return self.graph or self.compile_mode == "max-autotune"


EAGER_DEFAULT = Mode("eager default", "tf32", autotune=False)
EAGER_HALF = Mode("eager half", "fp16")
MODES = (
    EAGER_DEFAULT,
    EAGER_HALF,
    Mode("eager half channels_last_3d", "fp16", channels_last=True),
    Mode("eager half channels_last_3d graph", "fp16", channels_last=True, graph=True),
    Mode("compile half channels_last_3d", "fp16", True, compile_mode="default"),
    Mode("compile max-autotune half channels_last_3d", "fp16", True, compile_mode="max-autotune"),
    Mode("eager tf32 channels_last_3d", "tf32", channels_last=True),
    Mode("compile tf32", "tf32", compile_mode="default"),
    Mode("compile tf32 channels_last_3d", "tf32", True, compile_mode="default"),
    Mode("eager fp32", "fp32"),
    Mode("compile fp32", "fp32", compile_mode="default"),
    Mode("compile fp32 channels_last_3d", "fp32", True, compile_mode="default"),
)


def modes(kind: str, precision: Precision) -> tuple[Mode, ...]:
    """Those that a precision compares with on a "cuda" or "cpu" device, the usual one first."""
    if kind == "cpu":
        return tuple(m for m in MODES if m.arithmetic == "fp32" and not m.channels_last)
    same = "fp16" if precision == "bf16" else precision
    chosen = [m for m in MODES if m.arithmetic == same and m != EAGER_DEFAULT]
    if precision == "bf16":
        renamed = {m: m.name.replace("half", "bfloat16") for m in chosen}
        chosen = [replace(m, arithmetic="bf16", name=name) for m, name in renamed.items()]
    return (EAGER_DEFAULT, *chosen)
