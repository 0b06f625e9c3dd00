"""Open questions settled by a reference: a patch, and what the training code made of it."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from ...errors import CheckpointError
from ...model.reference import TOLERANCE, relative_error
from ...network.architectures import build
from ...network.graph import FloatArray, Network
from ...onnxruntime.session import open_cpu_generator
from .layouts import recognise
from .recognition import Question, Recognised, setting

_ANSWERABLE = ("padding", "norm_statistics", "concat", "upsampling", "direction")
"""Choices that a reference can settle."""


def candidates(recognised: Recognised) -> Iterator[Recognised]:
    """The same checkpoint under every combination of answers to its open questions."""
    names = [question.field for question in recognised.undecided]
    for answers in product(*(question.answers for question in recognised.undecided)):
        answered = dict(zip(names, answers, strict=True))
        yield recognise(recognised.checkpoint, replace(recognised.choices, **answered))


def resolve(
    recognised: Recognised, reference_input: FloatArray, reference_output: FloatArray
) -> Recognised:
    """The one candidate that computes the reference, both [N, C, D, H, W].

    Raises CheckpointError if none does, or if several do and differ on this patch.
    """
    matching: list[tuple[Recognised, FloatArray]] = []
    errors: list[float] = []
    for candidate in candidates(recognised):
        output = _output(candidate, reference_input)
        errors.append(_compared(output, reference_output))
        if errors[-1] <= TOLERANCE:
            matching.append((candidate, output))
    if not matching:
        _refuse_contradicted(recognised, reference_input, reference_output)
        raise CheckpointError(
            f"No reading of the checkpoint computes the reference output; the closest is "
            f"{min(errors):.2g} away (relative L2). The reference must come from this very "
            "checkpoint as its test code runs it, in float32 on the CPU, without any processing."
        )
    chosen, output = matching[0]
    if any(not np.array_equal(output, other) for _, other in matching[1:]):
        settings = ", ".join(setting(question.field) for question in recognised.undecided)
        raise CheckpointError(
            f"Several readings of the checkpoint compute the reference to {TOLERANCE:g}; "
            f"use a reference patch with more structure, or say {settings}."
        )
    return _credited(chosen, recognised.undecided)


def _output(candidate: Recognised, patch: FloatArray) -> FloatArray:
    with open_cpu_generator(Network(build(candidate.spec), candidate.weights)) as generator:
        return generator(patch)


def _refuse_contradicted(
    recognised: Recognised, reference_input: FloatArray, reference_output: FloatArray
) -> None:
    """Raise CheckpointError if the reference shows that a choice of the user's is wrong."""
    said = {name: getattr(recognised.choices, name) for name in _ANSWERABLE}
    said = {name: answer for name, answer in said.items() if answer is not None}
    open_choices = replace(recognised.choices, **dict.fromkeys(said))
    for candidate in candidates(recognise(recognised.checkpoint, open_choices)):
        output = _output(candidate, reference_input)
        if _compared(output, reference_output) <= TOLERANCE:
            wrong = [name for name in said if getattr(candidate.choices, name) != said[name]]
            raise CheckpointError(
                f"The reference contradicts {_spelled(recognised, wrong)}: it was computed with "
                f"{_spelled(candidate, wrong)}."
            )


def _spelled(recognised: Recognised, names: list[str]) -> str:
    return " ".join(f"{setting(name)}={getattr(recognised.choices, name)}" for name in names)


def _credited(chosen: Recognised, settled: tuple[Question, ...]) -> Recognised:
    """Name the reference, not the user, as the source of what it settled."""
    subjects = {question.subject for question in settled}
    told = tuple(
        replace(finding, reason="only this computes the reference")
        if finding.subject in subjects
        else finding
        for finding in chosen.told
    )
    return replace(chosen, told=told)


def _compared(output: FloatArray, reference: FloatArray) -> float:
    if output.shape != reference.shape:
        raise CheckpointError(
            f"The reference output has the shape {reference.shape}, but the generator makes "
            f"{output.shape} of the reference input."
        )
    return relative_error(output, reference)
