"""Import of a training checkpoint, or of a live PyTorch module, as a model file."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...engine.errors import CheckpointError
from ...engine.importing.checkpoint.evidence import NetworkChoices, Question
from ...engine.model.model_file import Model
from ...io.conversion import AnyPath
from ...io.files.documents import write_document
from ..errors import UndecidedError
from ..model_import.card_draft import CardDraft
from ..model_import.file_kinds import ImportRequest
from ..model_import.importing import make_model, survey
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
    omit: Sequence[str] = (),
    replace: bool = False,
) -> Model:
    """Convert a training checkpoint to a model, write its file, and return it; runs no code in it.

    checkpoint: weights from training. output: model file to write atomically. card: description of
    the training data. choices: choices about the network that the weights do not determine.
    reference: a file of a patch and the training code's output for it, which verifies the network's
    computation. folds: of a model folder of nnU-Net, to be averaged, such as ("0", "1").
    omit: parts of a MONAI bundle that are not reproduced, and that results may lack. replace:
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
        tuple(omit),
    )
    sources = (request.checkpoint, *([proof] if proof else []))
    check_free(file, replace=replace, sources=sources)
    return _imported(request, file, str(request.checkpoint))


def from_torch(
    module: Any, example: Any, output: AnyPath, card: CardDraft, *, replace: bool = False
) -> Model:
    """Convert a live PyTorch module to a model, write its file, and return it.

    The module is exported by torch.export as it is (call eval() first if your test code does), and
    the model must reproduce what the module computes for the example.

    module: torch.nn.Module that takes and returns one tensor [N, C, D, H, W], on the CPU in
    float32. example: a patch [1, C, D, H, W], tensor or array; the model takes patches of other
    sizes if PyTorch can export the module for them. output: model file to write atomically. card:
    description of the training data; its patch is the example's if it names none. replace: whether
    an existing output may be replaced.

    Raises UndecidedError, with the fields that must be stated; EngineError for a module that
    PyTorch cannot export, or that has layers which are not supported; SettingsError for arguments
    that do not fit it; MissingLibraryError without PyTorch; OccupiedError for an existing output;
    WriteError.

    >>> import torch
    >>> generator = torch.nn.Sequential(torch.nn.Conv3d(1, 1, 3, padding=1), torch.nn.Tanh())
    >>> model = from_torch(
    ...     generator.eval(),
    ...     torch.zeros(1, 1, 32, 32, 32),
    ...     "generator.safetensors",
    ...     CardDraft(
    ...         source=("T1",),
    ...         target=("T2",),
    ...         axes="RAS",
    ...         spacing=(1.0, 1.0, 1.0),
    ...         intensity_in=Percentiles(0, 99.5),
    ...         intensity_out=Percentiles(0, 99.5),
    ...     ),
    ... )
    >>> model.card.patch
    (32, 32, 32)
    """
    from ..model_import.live_module import write_module

    file, draft = path_of("output", output), record("card", CardDraft, card)
    check_free(file, replace=replace, sources=())
    with TemporaryDirectory() as folder:
        written = write_module(module, example, Path(folder))
        draft = dataclasses.replace(draft, patch=draft.patch or written.patch)
        request = ImportRequest(written.program, NetworkChoices(), draft, written.reference)
        try:
            return _imported(request, file, "The module")
        except CheckpointError as error:
            raise CheckpointError(str(error).removeprefix(f"{written.program}: ")) from error


def _imported(request: ImportRequest, output: Path, shown: str) -> Model:
    """Make the model of a request and write it. shown: what is imported, for messages."""
    found = survey(request)
    if found.undecided:
        raise _undecided(shown, found.undecided)
    imported = make_model(found)
    write_document(output, imported.content)
    return dataclasses.replace(imported.model, path=output)


def _undecided(shown: str, questions: tuple[Question, ...]) -> UndecidedError:
    asked = "; ".join(f"{question.field}: {question.why}" for question in questions)
    return UndecidedError(
        f"{shown} does not define the network completely; also set {asked}.",
        tuple(question.field for question in questions),
    )
