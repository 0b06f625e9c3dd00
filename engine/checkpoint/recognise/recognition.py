"""From a checkpoint to a generator and its weights, with an account of what is not certain."""

from dataclasses import dataclass, field

from ...errors import CheckpointError, listed, quoted
from ...model.model_card import Established
from ...network.architectures import Spec
from ...network.graph import Network
from ..read.checkpoint import Checkpoint
from ..read.tensors import check_amount
from .codes import fitting_codes
from .established import established_reading
from .evidence import Evidence, Fact, NetworkChoices, Question
from .foreign import foreign_sentence, unknown_sentence
from .layers import NetworkTensors
from .match import Match, ResNetShape
from .networks import Chosen, Tensors, generator_tensors, networks
from .reading import Reading
from .resnet import match_resnet
from .unet import match_unet

_LAYOUTS = (match_resnet, match_unet)


@dataclass(frozen=True, slots=True)
class Left:
    """Tensors of the file that the generator does not use.

    name: where they lie, or empty. tensors: how many. is_network: whether they are a network.
    """

    name: str
    tensors: int
    is_network: bool


@dataclass(frozen=True, slots=True)
class Recognised:
    """A checkpoint's generator; while `undecided` is not empty its network rests on guesses.

    match: the layout. told: facts that the file, a code, a reference or the user tells. defaulted:
    those that were assumed. left: what lies beside it. choices: what the user said. reading: all
    that the shapes do not tell. established: by what the reading is known; None if by nothing.
    fitting_codes: training codes that write such tensors.
    """

    match: Match
    network: Network = field(repr=False)
    reading: Reading
    established: Established | None
    fitting_codes: tuple[str, ...]
    told: tuple[Fact, ...]
    defaulted: tuple[Fact, ...]
    undecided: tuple[Question, ...]
    left: tuple[Left, ...]
    checkpoint: Checkpoint = field(repr=False)
    choices: NetworkChoices

    @property
    def spec(self) -> Spec:
        """The architecture."""
        return self.match.spec(self.reading)


def recognise(checkpoint: Checkpoint, choices: NetworkChoices) -> Recognised:
    """The generator in a checkpoint, matched against every supported layout.

    Raises CheckpointError if there is none, if it is a variant that is not supported, if the file
    holds tensors that may be a part of it, or if a choice has no meaning for it. Open questions
    come back in `undecided`.
    """
    evidence = Evidence(choices)
    try:
        return _recognise(checkpoint, evidence)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.path}: {error}") from error


def _recognise(checkpoint: Checkpoint, evidence: Evidence) -> Recognised:
    chosen = _chosen(checkpoint, evidence)
    match = match_of(chosen.tensors)
    _tell_shapes(match, evidence)
    reading, established = established_reading(match, evidence, checkpoint.options)
    match.spec(reading)  # before weights without bounds are read
    check_amount(chosen.tensors.values())
    return Recognised(
        match=match,
        network=match.network(reading),
        reading=reading,
        established=established,
        fitting_codes=fitting_codes(match),
        told=tuple(evidence.told),
        defaulted=tuple(evidence.defaulted),
        undecided=tuple(evidence.undecided),
        left=tuple(
            Left(group.name, len(group.floating), group.is_network) for group in chosen.left
        ),
        checkpoint=checkpoint,
        choices=evidence.choices,
    )


def _chosen(checkpoint: Checkpoint, evidence: Evidence) -> Chosen:
    try:
        return generator_tensors(checkpoint, evidence)
    except CheckpointError:
        names = [
            f"{group.name}/{key}" if group.name else key
            for group in networks(checkpoint)
            for key in group.tensors
        ]
        if evidence.choices.generator is None and (sentence := foreign_sentence(names)):
            raise CheckpointError(sentence) from None
        raise


def match_of(tensors: Tensors) -> Match:
    """The layout whose layers these tensors are; raises CheckpointError if there is none."""
    if sentence := foreign_sentence(tensors):
        raise CheckpointError(sentence)
    modules = NetworkTensors.of(tensors)
    _ = modules.norm_parameters  # raises what is wrong with them
    if found := _known(modules):
        return found
    within = modules.within("model.")
    if _known(within):
        beside = sorted(modules.paths - within.paths)
        raise CheckpointError(
            f"The generator holds {listed(map(quoted, beside))} beside the layers of a known one; "
            "without them the images would be wrong, so it is not imported."
        )
    raise CheckpointError(unknown_sentence(tensors))


def _known(modules: NetworkTensors) -> Match | None:
    return next((found for layout in _LAYOUTS if (found := layout(modules))), None)


def _tell_shapes(match: Match, evidence: Evidence) -> None:
    shape = match.shape
    channels = f"{shape.in_channels} in, {shape.out_channels} out"
    evidence.tell("channels", channels, "shapes of the first and last convolution")
    evidence.tell("width", shape.width, "shape of the first convolution")
    for name in match.modules.folded:
        evidence.tell(name, "folded into the weights", "the tensors that it is stored as")
    if isinstance(shape, ResNetShape):
        evidence.tell("blocks", shape.blocks, "number of residual blocks")
        decoder = "sampling and convolution" if shape.sampled else "transposed convolution"
        evidence.tell("decoder", decoder, "shapes and places of its layers")
        if shape.blur_taps or shape.blurs_up:
            evidence.tell("anti-aliasing", "yes", "fixed filters, whose values are as they must be")
    else:
        evidence.tell("levels", shape.levels, "depth of the nested names")
