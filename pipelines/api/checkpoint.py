"""Import of a training checkpoint as a model file."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ...engine.importing.evidence import NetworkChoices, Question
from ...engine.model.model_file import Model
from ...io.conversion import AnyPath
from ...io.files.documents import write_document
from ..errors import UndecidedError
from ..model_import.card_draft import CardDraft
from ..model_import.importing import ImportRequest, make_model, survey
from ..results.output_file import check_free
from .arguments import path_of, record

_NOTHING_SAID = NetworkChoices()


def import_checkpoint(
    checkpoint: AnyPath,
    output: AnyPath,
    card: CardDraft,
    choices: NetworkChoices = _NOTHING_SAID,
    *,
    reference: AnyPath | None = None,
    folds: Sequence[str] = (),
    replace: bool = False,
) -> Model:
    """Convert a training checkpoint to a model, write its file, and return it; runs no code in it.

    checkpoint: weights from training. output: model file to write atomically. card: description of
    the training data. choices: choices about the network that the weights do not determine.
    reference: a file of a patch and the training code's output for it, which verifies the network's
    computation. folds: of a model folder of nnU-Net, to be averaged, such as ("0", "1"). replace:
    whether an existing output may be replaced.

    Raises UndecidedError, with the fields that must be stated; EngineError for a checkpoint that is
    rejected or not recognised; SettingsError for arguments that do not fit it; OccupiedError for an
    existing output; WriteError.

    >>> model = import_checkpoint(
    ...     "latest_net_G_A.pth",
    ...     "t1-to-t2.safetensors",
    ...     CardDraft(
    ...         source=("T1",),
    ...         target=("T2",),
    ...         axes="RAS",
    ...         spacing=(1.0, 1.0, 1.0),
    ...         patch=(32, 32, 32),
    ...         intensity_in=Percentiles(0, 99.5),
    ...         intensity_out=Percentiles(0, 99.5),
    ...     ),
    ...     reference="reference.npz",
    ... )
    >>> model.card.name
    'T1 to T2'
    """
    file = path_of("output", output)
    proof = None if reference is None else path_of("reference", reference)
    request = ImportRequest(
        path_of("checkpoint", checkpoint),
        record("choices", NetworkChoices, choices),
        record("card", CardDraft, card),
        proof,
        tuple(folds),
    )
    sources = (request.checkpoint, *([proof] if proof else []))
    check_free(file, replace=replace, sources=sources)
    found = survey(request)
    if found.undecided:
        raise _undecided(request.checkpoint, found.undecided)
    made = make_model(found)
    write_document(file, made.content)
    return dataclasses.replace(made.model, path=file)


def _undecided(checkpoint: Path, questions: tuple[Question, ...]) -> UndecidedError:
    asked = "; ".join(f"{question.field}: {question.why}" for question in questions)
    return UndecidedError(
        f"{checkpoint} does not define the network completely; also set {asked}.",
        tuple(question.field for question in questions),
    )
