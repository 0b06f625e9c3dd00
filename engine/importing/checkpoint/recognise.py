"""Recognition of a checkpoint's generator: its tensors, its layout and weights, and the evidence.

`recognise` finds the generator's tensors among the networks of a file, matches them to a layout,
and determines the reading; a known network that cannot be imported is named in the error.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ...errors import CheckpointError, listed, naming, quoted
from ...model.model_card import Established
from ...network.architectures import Spec
from ...network.graph import Network
from ..checkpoint_file import Checkpoint, CheckpointEntry
from ..pickles import LONGEST_NAME
from ..torch_files import StoredTensor, check_amount
from .evidence import Evidence, Fact, NetworkChoices, Question, Reading
from .foreign_networks import foreign_sentence, unknown_sentence
from .generator_layers import NetworkTensors, Tensors
from .layouts import Match, ResNetShape, match_resnet, match_unet
from .provenance import resolve_reading
from .training_codes import fitting_codes

# Prefixes that torch.nn.DataParallel and torch.compile add to every key.
_WRAPPERS = ("module.", "_orig_mod.")
_DEEPEST_WRAPPING = 4
_GENERATOR_KEY = re.compile(r"model\.\d+\.|model\.model\.1\.model\.|initial\.\d")
_BARE_BLOCK = re.compile(r"\d+\.(conv_)?block\.")
_BARE_LAYER = re.compile(r"\d+\.(weight|parametrizations)")
_FEWEST_CONVOLUTIONS, _CONVOLUTION = 3, 4
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
"""Names of training state other than generators."""


def _one_way(source: str, target: str) -> re.Pattern[str]:
    """Return a pattern for A2B, AtoB, a_to_b, G_AB, netG_A, G_A, generator_ab ... in a name."""
    low, high = source.lower(), target.lower()
    return re.compile(
        rf"{source}_?(2|to|To)_?{target}(?![a-z])|(?<![A-Za-z]){low}_?(2|to)_?{high}(?![A-Za-z])"
        rf"|(?i:(^|[_/.])g?_?{low}{high}([_.]|$)|(^|[_/.]|net)g(en|enerator)?_?{low}([_.]|$))"
    )


_DIRECTIONS = {"AtoB": _one_way("A", "B"), "BtoA": _one_way("B", "A")}


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors of a checkpoint that belong together.

    name: their path in the file. tensors: by their names in it. saved_in: entry of the file that
    contains them: the name without the prefixes of networks that share a state.
    """

    name: str
    tensors: Tensors
    saved_in: str

    @property
    def rank(self) -> int:
        """Axes of the largest weights: 5 for a 3-D network, 4 for a 2-D one."""
        return max((len(tensor.shape) for tensor in self.tensors.values()), default=0)

    @property
    def is_network(self) -> bool:
        """Whether the group holds convolutions of any kind."""
        return self.rank >= _CONVOLUTION

    @property
    def floating(self) -> list[str]:
        """Full names of the floating-point tensors."""
        prefix = f"{self.name}/" if self.name else ""
        return [f"{prefix}{key}" for key, item in self.tensors.items() if "float" in item.element]


@dataclass(frozen=True, slots=True)
class Left:
    """Tensors of the file that the generator does not use.

    name: their path in the file, or empty. tensors: how many. is_network: whether they are a
    network.
    """

    name: str
    tensors: int
    is_network: bool


def generator_tensors(
    checkpoint: Checkpoint, evidence: Evidence
) -> tuple[Tensors, tuple[Left, ...]]:
    """Return the tensors of the generator that the choices name, or of the only one, and the rest.

    Raises CheckpointError if there is none, if several are indistinguishable, or if other tensors
    in the file may be a part of it.
    """
    groups = _all_groups(checkpoint)
    found = [group for group in groups if group.is_network]
    if not found:
        raise CheckpointError(
            "The file contains no convolution weights and therefore no generator; give the "
            "generator's checkpoint, such as latest_net_G_A.pth."
        )
    group = _chosen(found, evidence)
    if group.rank == 4:
        raise CheckpointError(
            "This is a 2-D network (its convolutions have four axes); only 3D generators, trained "
            "on volumes, can be imported."
        )
    _record_direction(group, checkpoint, evidence)
    left = tuple(other for other in groups if other is not group and other.floating)
    _check_unused(group, left, is_named=evidence.choices.generator is not None)
    unused = (Left(other.name, len(other.floating), other.is_network) for other in left)
    return group.tensors, tuple(unused)


def networks(checkpoint: Checkpoint) -> list[Group]:
    """Return all networks of a checkpoint that hold convolutions."""
    return [group for group in _all_groups(checkpoint) if group.is_network]


def _check_unused(chosen: Group, left: Iterable[Group], *, is_named: bool) -> None:
    """Raise CheckpointError for tensors of unknown use next to the generator.

    is_named: whether the user chose the generator by name.
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
        f"Besides the generator, the file contains {listed(map(quoted, names))}; it is unclear "
        "whether its output passes through them, or whether they are a copy that should be "
        f"imported instead, and then the images would be wrong. If neither applies, {by_name}save "
        "the generator alone with torch.save(generator.state_dict(), 'generator.pth')."
    )


def _is_known(group: Group, chosen: Group, *, is_named: bool) -> bool:
    """Return whether a group is a separate network or training state."""
    if is_named and group.is_network and group.saved_in != chosen.saved_in:
        return True
    if _direction(group.name) not in (None, _direction(chosen.name)):
        return True  # part of the other generator
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
            "direction",
            pair,
            "the file contains both generators; the other one translates in the reverse direction",
        )
        return pair[direction][0]
    raise CheckpointError(
        f"The file contains {_several(generators)}; choose the generator with setting generator, "
        f"one of {_names(generators)}."
    )


def _is_helper(group: Group) -> bool:
    return bool(_DISCRIMINATOR.search(group.name) or _HELPER_NETWORK.search(group.name))


def _has_blocks(group: Group) -> bool:
    """Whether the layers are those of a generator, whatever its name is, such as F next to G."""
    return any(_GENERATOR_BLOCK.search(key) for key in group.tensors)


def _several(groups: list[Group]) -> str:
    if all(group.name.rsplit("/", 1)[-1].isdigit() for group in groups):
        return "a list of networks without names, as an nn.ModuleList saves them"
    return "several networks"


def _record_direction(group: Group, checkpoint: Checkpoint, evidence: Evidence) -> None:
    if any(question.field == "direction" for question in evidence.undecided):
        return
    if group.name:
        evidence.record("weights", group.name, "name of the entry in the file")
    stated = evidence.choices.direction
    stem = checkpoint.path.name.removesuffix(".tar").rsplit(".", 1)[0]
    if direction := _direction(group.name):
        reason = "name of the entry in the file"
    elif direction := _direction(stem):
        reason = f"file name {checkpoint.path.name}"
    else:
        direction, reason = stated, "set with setting direction"
    if direction is None:
        evidence.assume("direction", "unknown", "neither the file nor its name shows it")
    elif stated not in (None, direction):
        raise CheckpointError(
            f"Setting direction={stated} contradicts the {reason}, which states {direction}; use "
            "the "
            "file of the other generator, or omit setting direction."
        )
    elif all(finding.subject != "direction" for finding in evidence.facts):
        evidence.record("direction", direction, reason)


def _direction(name: str) -> str | None:
    found = [direction for direction, pattern in _DIRECTIONS.items() if pattern.search(name)]
    return found[0] if len(found) == 1 else None


def _names(groups: list[Group]) -> str:
    return listed(quoted(group.name) for group in groups)


def _all_groups(checkpoint: Checkpoint) -> list[Group]:
    return list(_groups("", checkpoint.contents))


def _states(contents: Mapping[str, CheckpointEntry]) -> Iterator[list[str]]:
    """Yield the names of the tensors of each state, which may hold several networks."""
    yield [key for key, item in contents.items() if isinstance(item, StoredTensor)]
    for item in contents.values():
        if isinstance(item, Mapping):
            yield from _states(item)


def _groups(name: str, contents: Mapping[str, CheckpointEntry]) -> Iterator[Group]:
    tensors = {key: item for key, item in contents.items() if isinstance(item, StoredTensor)}
    if tensors:
        yield from _split(Group(name, tensors, name), _DEEPEST_WRAPPING)
    for key, item in contents.items():
        if isinstance(item, Mapping):
            yield from _groups(_joined(name, key), item)


def _split(group: Group, depth: int) -> list[Group]:
    """Split a group into networks, which a Lightning state keeps under prefixes.

    Tensors without a network's prefix come last.
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
    """Whether the names are those of a whole generator; a block of another network has fewer."""
    convolutions = sum(len(tensor.shape) >= _CONVOLUTION for tensor in tensors.values())
    return convolutions >= _FEWEST_CONVOLUTIONS and any(map(_GENERATOR_KEY.match, tensors))


def _bare(tensors: Tensors) -> Tensors:
    for wrapper in _WRAPPERS:
        if all(key.startswith(wrapper) for key in tensors):
            return _bare({key.removeprefix(wrapper): item for key, item in tensors.items()})
    is_numbered = all(key[:1].isdigit() for key in tensors)
    if (
        is_numbered
        and any(map(_BARE_BLOCK.match, tensors))
        and any(map(_BARE_LAYER.match, tensors))
    ):
        return {f"model.{key}": item for key, item in tensors.items()}
    return tensors


def _joined(name: str, key: str) -> str:
    joined = f"{name}/{key}" if name else key
    if len(joined) > LONGEST_NAME:
        raise CheckpointError(
            f"The checkpoint has a network whose name has {len(joined)} characters, "
            f"{quoted(joined)}, longer than in any training."
        )
    return joined


_LAYOUTS = (match_resnet, match_unet)


@dataclass(frozen=True, slots=True)
class Recognised:
    """A checkpoint's generator; while `undecided` is not empty, its network depends on guesses.

    match: the layout. network: graph and weights. reading: all that shapes do not determine.
    established: evidence of the reading; None without any. fitting_codes: training codes that write
    such tensors. facts: from the file, a code, a reference or the user. assumptions: what such
    networks usually do. undecided: open questions. left: unused tensors of the file. checkpoint:
    the file. choices: of the user.
    """

    match: Match
    network: Network = field(repr=False)
    reading: Reading
    established: Established | None
    fitting_codes: tuple[str, ...]
    facts: tuple[Fact, ...]
    assumptions: tuple[Fact, ...]
    undecided: tuple[Question, ...]
    left: tuple[Left, ...]
    checkpoint: Checkpoint = field(repr=False)
    choices: NetworkChoices

    @property
    def spec(self) -> Spec:
        """The architecture."""
        return self.match.spec(self.reading)


def recognise(checkpoint: Checkpoint, choices: NetworkChoices) -> Recognised:
    """Recognise the generator of a checkpoint among all supported layouts.

    Raises CheckpointError if there is none, if the variant is not supported, if the file holds
    other tensors that may be a part of it, or if a choice does not apply. Open questions are
    returned in `undecided`.
    """
    evidence = Evidence(choices)
    with naming(checkpoint.path):
        generator, left = _chosen_tensors(checkpoint, evidence)
        match = _match_of(generator)
        _record_shapes(match, evidence)
        reading, established = resolve_reading(match, evidence, checkpoint.options)
        match.spec(reading)  # checks bounds before weights are read
        check_amount(generator.values())
        return Recognised(
            match=match,
            network=match.network(reading),
            reading=reading,
            established=established,
            fitting_codes=fitting_codes(match),
            facts=tuple(evidence.facts),
            assumptions=tuple(evidence.assumptions),
            undecided=tuple(evidence.undecided),
            left=left,
            checkpoint=checkpoint,
            choices=evidence.choices,
        )


def _chosen_tensors(checkpoint: Checkpoint, evidence: Evidence) -> tuple[Tensors, tuple[Left, ...]]:
    try:
        return generator_tensors(checkpoint, evidence)
    except CheckpointError:
        states = _states(checkpoint.contents)
        if evidence.choices.generator is None and (sentence := foreign_sentence(states)):
            raise CheckpointError(sentence) from None
        raise


def _match_of(tensors: Tensors) -> Match:
    """Match tensors to a layout; raises CheckpointError if there is none."""
    if sentence := foreign_sentence([tensors]):
        raise CheckpointError(sentence)
    modules = NetworkTensors.of(tensors)
    _ = modules.norm_parameters  # raises CheckpointError for invalid norms
    if found := _known_layout(modules):
        return found
    within = modules.within("model.")
    if _known_layout(within):
        beside = sorted(modules.paths - within.paths)
        raise CheckpointError(
            f"The generator contains {listed(map(quoted, beside))} in addition to the layers of a "
            "known one; without them the images would be wrong, so it is not imported."
        )
    raise CheckpointError(unknown_sentence(tensors))


def _known_layout(modules: NetworkTensors) -> Match | None:
    return next((found for layout in _LAYOUTS if (found := layout(modules))), None)


def _record_shapes(match: Match, evidence: Evidence) -> None:
    shape = match.shape
    channels = f"{shape.in_channels} in, {shape.out_channels} out"
    evidence.record("channels", channels, "shapes of the first and last convolution")
    evidence.record("width", shape.width, "shape of the first convolution")
    for name in match.modules.folded:
        evidence.record(name, "folded into the weights", "the tensors in which it is stored")
    if isinstance(shape, ResNetShape):
        evidence.record("blocks", shape.blocks, "number of residual blocks")
        decoder = "sampling and convolution" if shape.sampled else "transposed convolution"
        evidence.record("decoder", decoder, "shapes and positions of its layers")
        if shape.blur_taps or shape.blurs_up:
            evidence.record("anti-aliasing", "yes", "fixed filters with the expected values")
    else:
        evidence.record("levels", shape.levels, "depth of the nested names")
