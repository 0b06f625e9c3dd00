"""Arguments of a component of a MONAI bundle, read one by one; what is left is not reproduced."""

from typing import cast

from ...engine.importing.known_networks.monai_config import Component, Unread
from ...engine.model.tiling import Shares
from ...engine.patch_grid import PatchPadding


class Refused(Exception):  # noqa: N818
    """A transform with arguments that are not reproduced; its text says which."""


def listed(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else [value]


class ComponentArguments:
    """Arguments of one component; each is taken once, and what is left over is not reproduced."""

    def __init__(self, component: Component, ignored: frozenset[str]) -> None:
        self.name = component.name
        self._held = {key: one for key, one in component.arguments.items() if key not in ignored}

    def take(self, name: str, default: object) -> object:
        value = self._held.pop(name, default)
        if isinstance(value, Unread):
            raise Refused(f"its {name} is the expression {value.text[:60]}")
        return value

    def drop(self, *names: str) -> None:
        """Ignore arguments that change nothing, whatever they are."""
        for name in names:
            self._held.pop(name, None)

    def only(self, name: str, usual: object, *more: object) -> None:
        """Refuse an argument with a value that is none of these."""
        value = self.take(name, usual)
        for one in listed(value):
            if one not in (usual, *more) or isinstance(one, bool) != isinstance(usual, bool):
                raise Refused(f"its {name} is {one}")

    def number(self, name: str, default: float | None = None) -> float:
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Refused(f"its {name} is {value}")
        return float(value)

    def optional(self, name: str) -> float | None:
        return None if self._held.get(name) is None else self.number(name)

    def flag(self, name: str, default: bool) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise Refused(f"its {name} is {value}")
        return value

    def numbers(self, name: str, default: object = None) -> Shares:
        """Return three numbers; one stands for all axes."""
        value = self.take(name, default)
        stated = listed(value)
        values = stated * 3 if len(stated) == 1 else stated
        numbers = [
            float(one)
            for one in values
            if isinstance(one, int | float) and not isinstance(one, bool)
        ]
        if len(values) != 3 or len(numbers) != 3:
            raise Refused(f"its {name} is {value}")
        first, second, third = numbers
        return first, second, third

    def sides(self, name: str) -> tuple[Shares, Shares]:
        """Return three numbers for either side of the axes, from one, three or six."""
        value = listed(self.take(name, None))
        if len(value) != 6:
            value = [
                side for each in (value * 3 if len(value) == 1 else value) for side in 2 * [each]
            ]
        self._held |= {"before": value[::2], "after": value[1::2]}
        return self.numbers("before"), self.numbers("after")

    def check_taken(self) -> None:
        for name in self._held:
            raise Refused(f"its {name} is not known")

    def padding(self) -> PatchPadding:
        """Return the value that a transform pads with."""
        mode, value = self.take("mode", "constant"), self.number("value", 0.0)
        if mode == "constant":
            return value
        if mode in ("edge", "replicate"):
            return "edge"
        raise Refused(f"its mode is {mode}")
