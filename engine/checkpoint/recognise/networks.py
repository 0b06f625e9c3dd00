"""From the contents of a checkpoint to the tensors of one generator, under bare names."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...errors import CheckpointError, listed, quoted
from ..read.checkpoint import Checkpoint, CheckpointEntry
from ..read.dangerous_names import LONGEST_NAME
from ..read.tensors import StoredTensor
from .recognition import Evidence

Tensors = Mapping[str, StoredTensor]

# Left by torch.nn.DataParallel and torch.compile around every key.
_WRAPPERS = ("module.", "_orig_mod.")
_DEEPEST_WRAPPING = 4
_GENERATOR_KEY = re.compile(r"model\.\d+\.|model\.model\.1\.model\.|initial\.\d")
_DISCRIMINATOR = re.compile(r"(^|[_/.])(net_?)?d(isc?)?(_|$)|discr|d_model|critic", re.IGNORECASE)


def _one_way(source: str, target: str) -> re.Pattern[str]:
    """A2B, AtoB, a_to_b, G_AB, netG_A, G_A, generator_ab ... in a name."""
    low, high = source.lower(), target.lower()
    return re.compile(
        rf"{source}_?(2|to|To)_?{target}(?![a-z])|(?<![A-Za-z]){low}_?(2|to)_?{high}(?![A-Za-z])"
        rf"|(?i:(^|[_/.])g?_?{low}{high}([_.]|$)|(^|[_/.]|net)g(en|enerator)?_?{low}([_.]|$))"
    )


_DIRECTIONS = {"AtoB": _one_way("A", "B"), "BtoA": _one_way("B", "A")}


@dataclass(frozen=True, slots=True)
class Group:
    """The tensors of one network in a checkpoint; the name tells where they were."""

    name: str
    tensors: Tensors

    @property
    def rank(self) -> int:
        """Axes of its largest weights: 5 for a 3-D network, 4 for a 2-D one."""
        return max(len(tensor.shape) for tensor in self.tensors.values())


def generator_tensors(checkpoint: Checkpoint, evidence: Evidence) -> Tensors:
    """The tensors of the generator that the choices name, or of the only one.

    Raises CheckpointError if there is none, or several that nothing tells apart.
    """
    groups = networks(checkpoint)
    if not groups:
        raise CheckpointError(
            "The file holds no convolution weights, so no generator; name the generator's "
            "checkpoint, such as latest_net_G_A.pth."
        )
    group = _chosen(groups, evidence)
    if group.rank == 4:
        raise CheckpointError(
            "This is a 2-D network (its convolutions have four axes); only 3-D generators, "
            "trained on volumes, can be imported."
        )
    _tell_direction(group, checkpoint, evidence)
    return group.tensors


def networks(checkpoint: Checkpoint) -> list[Group]:
    """The networks in a checkpoint that hold convolutions, whatever they are for."""
    return [group for group in _groups("", checkpoint.contents) if group.rank >= 4]


def _chosen(groups: list[Group], evidence: Evidence) -> Group:
    choices = evidence.choices
    if choices.generator is not None:
        wanted = choices.generator
        named = [g for g in groups if wanted in (g.name, g.name.rsplit("/", 1)[-1])]
        if len(named) == 1:
            return named[0]
        raise CheckpointError(
            f"Setting generator must be one of {_names(groups)}, not {quoted(wanted)}."
        )
    deepest = max(group.rank for group in groups)
    groups = [group for group in groups if group.rank == deepest]
    generators = [group for group in groups if not _DISCRIMINATOR.search(group.name)] or groups
    if len(generators) == 1:
        return generators[0]
    pair = {
        direction: [group for group in generators if _direction(group.name) == direction]
        for direction in _DIRECTIONS
    }
    if all(len(found) == 1 for found in pair.values()):
        direction = evidence.ask(
            "direction", pair, "the file holds both generators; the other one translates backwards"
        )
        return pair[direction][0]
    raise CheckpointError(
        f"The file holds several networks; choose the generator with setting generator, "
        f"one of {_names(generators)}."
    )


def _tell_direction(group: Group, checkpoint: Checkpoint, evidence: Evidence) -> None:
    if any(question.field == "direction" for question in evidence.undecided):
        return
    if group.name:
        evidence.tell("weights", group.name, "name of the entry in the file")
    said = evidence.choices.direction
    stem = checkpoint.path.name.removesuffix(".tar").rsplit(".", 1)[0]
    if direction := _direction(group.name):
        reason = "name of the entry in the file"
    elif direction := _direction(stem):
        reason = f"file name {checkpoint.path.name}"
    else:
        direction, reason = said, "said with setting direction"
    if direction is None:
        evidence.assume("direction", "unknown", "neither the file nor its name says it")
    elif said not in (None, direction):
        raise CheckpointError(
            f"Setting direction={said} contradicts the {reason}, which says {direction}; "
            "take the file of the other generator, or leave setting direction out."
        )
    elif all(finding.subject != "direction" for finding in evidence.told):
        evidence.tell("direction", direction, reason)


def _direction(name: str) -> str | None:
    found = [direction for direction, pattern in _DIRECTIONS.items() if pattern.search(name)]
    return found[0] if len(found) == 1 else None


def _names(groups: list[Group]) -> str:
    return listed(quoted(group.name) for group in groups)


def _groups(name: str, contents: Mapping[str, CheckpointEntry]) -> Iterator[Group]:
    tensors = {key: item for key, item in contents.items() if isinstance(item, StoredTensor)}
    if tensors:
        yield from _split(name, tensors, _DEEPEST_WRAPPING)
    for key, item in contents.items():
        if isinstance(item, Mapping):
            yield from _groups(_joined(name, key), item)


def _split(name: str, tensors: Tensors, depth: int) -> list[Group]:
    """One group a network: networks lie side by side under prefixes in a Lightning state."""
    tensors = _bare(tensors)
    whole = [Group(name, tensors)]
    if _is_network(tensors) or not depth:
        return whole
    inside: dict[str, dict[str, StoredTensor]] = {}
    for key, tensor in tensors.items():
        head, dot, rest = key.partition(".")
        if dot:
            inside.setdefault(head, {})[rest] = tensor
    split = [
        g for head, below in inside.items() for g in _split(_joined(name, head), below, depth - 1)
    ]
    return [group for group in split if _is_network(group.tensors)] or whole


def _is_network(tensors: Tensors) -> bool:
    return any(_GENERATOR_KEY.match(key) for key in tensors)


def _bare(tensors: Tensors) -> Tensors:
    for wrapper in _WRAPPERS:
        if all(key.startswith(wrapper) for key in tensors):
            return _bare({key.removeprefix(wrapper): item for key, item in tensors.items()})
    if all(key[:1].isdigit() for key in tensors) and any(".conv_block." in key for key in tensors):
        return {f"model.{key}": item for key, item in tensors.items()}
    return tensors


def _joined(name: str, key: str) -> str:
    joined = f"{name}/{key}" if name else key
    if len(joined) > LONGEST_NAME:
        raise CheckpointError(
            f"The checkpoint has a network whose name has {len(joined)} letters, {quoted(joined)}; "
            "no training names one so."
        )
    return joined
