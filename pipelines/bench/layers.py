"""Steps with the same operation, grouped for a table or plot of layers."""

from collections.abc import Iterable
from dataclasses import dataclass

from ...engine.benchmark.measurement import LayerTime


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Steps of one operation and tactic. seconds, flops and bytes: totals of all steps.

    layers: their names. operation: their operation. plan: tactic on the device, None if it has no
    choice.
    """

    layers: tuple[str, ...]
    operation: str
    plan: str | None
    seconds: float
    flops: int
    bytes: int | None

    @property
    def name(self) -> str:
        """Operation, with the number of its layers or the name of its only one."""
        count = len(self.layers)
        return f"{count} x {self.operation}" if count > 1 else f"{self.layers[0]}: {self.operation}"

    @property
    def flop_rate(self) -> float | None:
        """FLOP/s; None if the operation is not a convolution."""
        return self.flops / self.seconds if self.flops else None

    @property
    def byte_rate(self) -> float | None:
        """Least number of bytes moved per second."""
        return self.bytes / self.seconds if self.bytes else None

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity in FLOP per byte."""
        return self.flops / self.bytes if self.flops and self.bytes else None


def grouped(layers: Iterable[LayerTime]) -> list[LayerGroup]:
    """Return the groups, slowest first."""
    found: dict[tuple[str, str | None], list[LayerTime]] = {}
    for layer in layers:
        found.setdefault((layer.operation, layer.plan), []).append(layer)
    groups = [
        LayerGroup(
            layers=tuple(layer.layer for layer in same),
            operation=operation,
            plan=plan,
            seconds=sum(layer.seconds for layer in same),
            flops=sum(layer.flops for layer in same),
            bytes=sum(layer.bytes or 0 for layer in same) or None,
        )
        for (operation, plan), same in found.items()
    ]
    return sorted(groups, key=lambda group: -group.seconds)
