"""What recognition makes of a checkpoint."""

from dataclasses import dataclass, field

from ...model.card import Established
from ...network.architectures import Spec
from ...network.graph import Network
from ..read.checkpoint import Checkpoint
from .match import Match
from .reading import Reading
from .recognition import Fact, NetworkChoices, Question


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
