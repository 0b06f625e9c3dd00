"""The configuration of a MONAI bundle as plain data: references are followed, expressions are not
evaluated.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ....io.files.regular import read_regular
from ...decoding import FieldError, Json, parse
from ...errors import CheckpointError, quoted

_LARGEST_CONFIG = 1 << 20
_MOST_STEPS = 20


@dataclass(frozen=True, slots=True)
class Unread:
    """A value that is not evaluated: an expression, or a reference that leads nowhere.

    text: as it is stated.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Component:
    """An object that a configuration describes.

    name: its class, without modules. arguments: those stated; an Unread in place of an expression.
    """

    name: str
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class BundleConfig:
    """Configuration of a bundle. content: that of inference.json."""

    content: Mapping[str, Json]

    @classmethod
    def read(cls, path: Path) -> "BundleConfig":
        """Read a configuration. Raises CheckpointError."""
        try:
            if path.stat().st_size > _LARGEST_CONFIG:
                raise CheckpointError(f"{path.name} is larger than any configuration.")
            content = parse(read_regular(path))
        except OSError as error:
            raise CheckpointError(f"{path.name} cannot be read: {error.strerror}.") from error
        except (FieldError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path.name} cannot be read: {error}.") from error
        if not isinstance(content, dict):
            raise CheckpointError(f"{path.name} is not a configuration of MONAI.")
        return cls(content)

    def resolved(self, name: str, value: Json, steps: int = 0) -> Json:
        """Return a value with its references followed; name: of the argument that has it.

        Raises CheckpointError for an expression, and for a reference that leads nowhere.
        """
        if steps > _MOST_STEPS:
            raise CheckpointError(f"The argument {quoted(name)} of the network refers to itself.")
        match value:
            case str() if value.startswith(("$", "%")):
                raise CheckpointError(
                    f"The argument {quoted(name)} of the network is the expression "
                    f"{quoted(value)}, which is not evaluated; write its value into "
                    "configs/inference.json."
                )
            case str() if value.startswith("@"):
                found: Json = cast("dict[str, Json]", self.content)
                for key in value[1:].replace("::", "#").split("#"):
                    found = _item(found, key, value)
                return self.resolved(name, found, steps + 1)
            case dict():
                return {key: self.resolved(name, one, steps + 1) for key, one in value.items()}
            case str() | int() | float() | None:
                return value
            case _:
                return [self.resolved(name, one, steps + 1) for one in value]

    def component(self, key: str) -> "Component | Unread | None":
        """Return the object under a key; None if there is none."""
        return self._component(self.content[key]) if key in self.content else None

    def composed(self, key: str) -> "Iterator[Component | Unread]":
        """Yield the transforms under a key, of compositions within it, too."""
        if key in self.content:
            yield from self._transforms(self.content[key], 0)

    def _transforms(self, value: Json, depth: int) -> "Iterator[Component | Unread]":
        found, description = self._component(value), self._held(value)
        is_composed = isinstance(found, Component) and found.name == "Compose"
        is_list = "_target_" not in description and "transforms" in description
        if (is_composed or is_list) and depth < _MOST_STEPS:
            held = description.get("transforms")
            listed = self._plain(held)
            if not isinstance(listed, list):
                yield Unread(str(held))
                return
            for one in listed:
                yield from self._transforms(one, depth + 1)
        elif found is not None:
            yield found

    def _component(self, value: Json) -> "Component | Unread | None":
        held = self._held(value)
        target = held.get("_target_")
        if not isinstance(target, str):
            return Unread(str(value))
        match self._plain(held.get("_disabled_", False)):
            case False:
                pass
            case True:
                return None
            case _:
                return Unread(target)
        arguments = {key: self._plain(one) for key, one in held.items() if not key.startswith("_")}
        return Component(target.rpartition(".")[2][:60], arguments)

    def _held(self, value: Json) -> dict[str, Json]:
        """Return an object's description, without following the references in it."""
        if isinstance(value, str) and value.startswith("@"):
            try:
                found: Json = cast("dict[str, Json]", self.content)
                for key in value[1:].replace("::", "#").split("#"):
                    found = _item(found, key, value)
            except CheckpointError:
                return {}
            return found if isinstance(found, dict) else {}
        return value if isinstance(value, dict) else {}

    def _plain(self, value: Json) -> "Json | Unread":
        try:
            return self.resolved("", value)
        except CheckpointError:
            return Unread(str(value))


def _item(holder: Json, key: str, reference: str) -> Json:
    if isinstance(holder, dict) and key in holder:
        return holder[key]
    if isinstance(holder, list) and key.isdecimal() and int(key) < len(holder):
        return holder[int(key)]
    raise CheckpointError(f"The configuration lacks what {quoted(reference)} refers to.")
