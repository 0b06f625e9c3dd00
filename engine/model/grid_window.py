"""Cropping and padding of the model's grid, as a training code does it after resampling.

The arithmetic of each rule is the table in pipelines/study/grid_windows.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..network.layers import Triple
from ..patch_grid import PatchPadding

WindowRule: TypeAlias = Literal[
    "extents", "at-least", "at-most", "multiple", "before", "after", "positive", "positive-padded"
]
"""Rule of one step.

extents: crop or pad to these extents around the centre. at-least, at-most: only pad, or only crop.
multiple: pad to a multiple. before, after: pad so many voxels on that side. positive: crop to the
box around values above 0 with a margin, as far as the volume reaches; positive-padded: the same,
but pad where the margin goes beyond it.
"""


@dataclass(frozen=True, slots=True)
class WindowStep:
    """One step of cropping or padding.

    rule: its arithmetic. voxels: numbers of the rule along D, H and W; 0 keeps an axis.
    """

    rule: WindowRule
    voxels: Triple

    @property
    def is_measured(self) -> bool:
        """Whether the step depends on the values of a scan."""
        return self.rule in ("positive", "positive-padded")


@dataclass(frozen=True, slots=True)
class GridWindow:
    """Cropping and padding of scans on the model's grid, after resampling.

    steps: in their order. padding: of all steps that pad; a number is a scan value if intensities
    are mapped afterwards, and a network intensity otherwise. fill: value of results where the grid
    was cropped off, in their unit.
    """

    steps: tuple[WindowStep, ...]
    padding: PatchPadding = 0.0
    fill: float = 0.0

    @property
    def is_measured(self) -> bool:
        """Whether its extents depend on the values of a scan."""
        return any(step.is_measured for step in self.steps)

    @property
    def spelled(self) -> str:
        """Form in which it is stated at an import, such as extents:96/96/64,padding=-1,fill=0."""
        steps = [f"{step.rule}:{spelled_each(step.voxels)}" for step in self.steps]
        padding = self.padding if isinstance(self.padding, str) else spelled_number(self.padding)
        return f"{'+'.join(steps)},padding={padding},fill={spelled_number(self.fill)}"


def spelled_each(numbers: Sequence[float]) -> str:
    """Return numbers along D, H and W as an option takes them, such as 96/96/64, or one for all."""
    if len(set(numbers)) == 1:
        return spelled_number(numbers[0])
    return "/".join(map(spelled_number, numbers))


def spelled_number(number: float) -> str:
    """Return a number as an option takes it: exact, without a fraction of 0."""
    return repr(number).removesuffix(".0")


_MOST_VOXELS = 4096


def invalid_window(window: GridWindow) -> tuple[str, str] | None:
    """Return the field and the reason why no grid can be cropped or padded like this, or None."""
    if not window.steps:
        return "steps", "must have a step"
    if window.padding not in ("edge",) and not isinstance(window.padding, float):
        return "padding", "must be a number or 'edge'"
    for at, step in enumerate(window.steps):
        if not all(0 <= count <= _MOST_VOXELS for count in step.voxels):
            return f"steps[{at}].voxels", f"must be three numbers from 0 to {_MOST_VOXELS}"
    return None
