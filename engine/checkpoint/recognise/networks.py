"""From the contents of a checkpoint to the tensors of one generator, under bare names."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...errors import CheckpointError, listed, quoted
from ..read.checkpoint import Checkpoint, CheckpointEntry
from ..read.dangerous_names import LONGEST_NAME
from ..read.tensors import StoredTensor
from .evidence import Evidence

Tensors = Mapping[str, StoredTensor]

# Left by torch.nn.DataParallel and torch.compile around every key.
_WRAPPERS = ("module.", "_orig_mod.")
_DEEPEST_WRAPPING = 4
_GENERATOR_KEY = re.compile(r"model\.\d+\.|model\.model\.1\.model\.|initial\.\d")
_BARE_BLOCK = re.compile(r"\d+\.(conv_)?block\.")
_GENERATOR_BLOCK = re.compile(r"(^|\.)(conv_block|res_blocks)\.|^model\.model\.1\.model\.")
_DISCRIMINATOR = re.compile(r"(^|[_/.])(net_?)?d(isc?)?(_|$)|discr|d_model|critic", re.IGNORECASE)
_HELPER = (
    r"optim|(^|[_/.])opt(_|$)|crit(eri|_|$)|loss|(real|fake)_label|vgg|lpips|percept"
    r"|(^|[_/.])net_?f($|[_/.])"
)
_HELPER_NETWORK = re.compile(_HELPER, re.IGNORECASE)
_TRAINING_STATE = re.compile(
    rf"{_HELPER}|sched|scaler|(^|[_/.])amp($|[_/.])|history|best|metric|psnr|ssim"
    r"|(^|[_/.])lr($|[_/.])",
    re.IGNORECASE,
)
"""Names of what a training keeps beside its generators and what translates nothing."""


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
    """Tensors of a checkpoint that lie together.

    name: tells where they were. tensors: by their names there. saved_in: the entry of the file that
    holds them, which is the name but for prefixes that several networks in one state have.
    """

    name: str
    tensors: Tensors
    saved_in: str

    @property
    def rank(self) -> int:
        """Axes of its largest weights: 5 for a 3-D network, 4 for a 2-D one."""
        return max((len(tensor.shape) for tensor in self.tensors.values()), default=0)

    @property
    def is_network(self) -> bool:
        """Whether it holds convolutions, whatever they are for."""
        return self.rank >= 4

    @property
    def floating(self) -> list[str]:
        """Full names of its tensors that a network may compute with."""
        prefix = f"{self.name}/" if self.name else ""
        return [f"{prefix}{key}" for key, item in self.tensors.items() if "float" in item.element]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The generator's tensors; left: all that lies beside them in the file."""

    tensors: Tensors
    left: tuple[Group, ...]


def generator_tensors(checkpoint: Checkpoint, evidence: Evidence) -> Chosen:
    """The tensors of the generator that the choices name, or of the only one.

    Raises CheckpointError if there is none, if there are several that nothing tells apart, or if
    tensors lie beside it that may be a part of what it computes.
    """
    groups = _all_groups(checkpoint)
    found = [group for group in groups if group.is_network]
    if not found:
        raise CheckpointError(
            "The file holds no convolution weights, so no generator; name the generator's "
            "checkpoint, such as latest_net_G_A.pth."
        )
    group = _chosen(found, evidence)
    if group.rank == 4:
        raise CheckpointError(
            "This is a 2-D network (its convolutions have four axes); only 3-D generators, "
            "trained on volumes, can be imported."
        )
    _tell_direction(group, checkpoint, evidence)
    left = tuple(other for other in groups if other is not group and other.floating)
    _refuse_unknown(group, left, is_named=evidence.choices.generator is not None)
    return Chosen(group.tensors, left)


def networks(checkpoint: Checkpoint) -> list[Group]:
    """The networks in a checkpoint that hold convolutions, whatever they are for."""
    return [group for group in _all_groups(checkpoint) if group.is_network]


def _refuse_unknown(chosen: Group, left: Iterable[Group], *, is_named: bool) -> None:
    """Raise CheckpointError for tensors beside the generator that nothing tells the use of.

    is_named: whether the user chose the generator by its name among what the file holds.
    """
    unknown = [group for group in left if not _is_known(group, chosen, is_named=is_named)]
    if not unknown:
        return
    names = [name for group in unknown for name in group.floating]
    by_name = (
        f"choose it with setting generator={chosen.name}, or "
        if chosen.name and all(_is_known(group, chosen, is_named=True) for group in unknown)
        else ""
    )
    raise CheckpointError(
        f"Beside the generator lie {listed(map(quoted, names))}, and nothing tells whether its "
        "output passes through them, or whether they are a copy that should be imported instead; "
        f"the images would be wrong then. If neither is so, {by_name}save the generator alone "
        "with torch.save(generator.state_dict(), 'generator.pth')."
    )


def _is_known(group: Group, chosen: Group, *, is_named: bool) -> bool:
    """Whether a group is a network of its own, or a training's state."""
    if is_named and group.is_network and group.saved_in != chosen.saved_in:
        return True
    if _direction(group.name) not in (None, _direction(chosen.name)):
        return True  # it is of the other generator, or a part of that
    if group.is_network:
        return _is_helper(group)
    known = _DISCRIMINATOR, _TRAINING_STATE
    return all(any(pattern.search(name) for pattern in known) for name in group.floating)


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
    generators = [g for g in groups if _has_blocks(g) or not _is_helper(g)] or groups
    like = [group for group in generators if _is_generator(group.tensors)]
    if len(like) == 1:
        return like[0]
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
        f"The file holds {_several(generators)}; choose the generator with setting generator, "
        f"one of {_names(generators)}."
    )


def _is_helper(group: Group) -> bool:
    return bool(_DISCRIMINATOR.search(group.name) or _HELPER_NETWORK.search(group.name))


def _has_blocks(group: Group) -> bool:
    """Whether its layers are those of a generator, whatever it is called, as F beside G is."""
    return any(_GENERATOR_BLOCK.search(key) for key in group.tensors)


def _several(groups: list[Group]) -> str:
    if all(group.name.rsplit("/", 1)[-1].isdigit() for group in groups):
        return "a list of networks without names, as an nn.ModuleList saves them"
    return "several networks"


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


def _all_groups(checkpoint: Checkpoint) -> list[Group]:
    return list(_groups("", checkpoint.contents))


def _groups(name: str, contents: Mapping[str, CheckpointEntry]) -> Iterator[Group]:
    tensors = {key: item for key, item in contents.items() if isinstance(item, StoredTensor)}
    if tensors:
        yield from _split(Group(name, tensors, name), _DEEPEST_WRAPPING)
    for key, item in contents.items():
        if isinstance(item, Mapping):
            yield from _groups(_joined(name, key), item)


def _split(group: Group, depth: int) -> list[Group]:
    """One group a network: networks lie side by side under prefixes in a Lightning state.

    What lies beside them under no prefix of a network comes last.
    """
    whole = Group(group.name, _bare(group.tensors), group.saved_in)
    if _is_generator(whole.tensors) or not depth:
        return [whole]
    inside: dict[str, dict[str, StoredTensor]] = {}
    beside: dict[str, StoredTensor] = {}
    for key, tensor in whole.tensors.items():
        head, dot, rest = key.partition(".")
        (inside.setdefault(head, {}) if dot else beside)[rest or key] = tensor
    split = [
        part
        for head, below in inside.items()
        for part in _split(Group(_joined(group.name, head), below, group.saved_in), depth - 1)
    ]
    if not any(_is_generator(part.tensors) for part in split):
        return [whole]
    return [*split, *([Group(group.name, beside, group.saved_in)] if beside else [])]


def _is_generator(tensors: Tensors) -> bool:
    return any(_GENERATOR_KEY.match(key) for key in tensors)


def _bare(tensors: Tensors) -> Tensors:
    for wrapper in _WRAPPERS:
        if all(key.startswith(wrapper) for key in tensors):
            return _bare({key.removeprefix(wrapper): item for key, item in tensors.items()})
    if all(key[:1].isdigit() for key in tensors) and any(_BARE_BLOCK.match(key) for key in tensors):
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
