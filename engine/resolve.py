"""Open questions settled by a reference: a patch, and what the training code made of it."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from .architectures import build
from .cpu import CpuGenerator
from .errors import CheckpointError
from .graph import FloatArray, Network
from .layouts import recognise
from .recognition import Recognised

TOLERANCE = 1e-3
"""Relative L2 error below which an output is the reference, both computed in float32."""


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
        errors.append(_relative_error(output, reference_output))
        if errors[-1] < TOLERANCE:
            matching.append((candidate, output))
    if not matching:
        raise CheckpointError(
            f"No reading of the checkpoint computes the reference output; the closest is "
            f"{min(errors):.2g} away (relative L2). The reference must come from this very "
            "checkpoint as its test code runs it, in float32 on the CPU, without any processing."
        )
    chosen, output = matching[0]
    if any(not np.array_equal(output, other) for _, other in matching[1:]):
        flags = ", ".join(question.flag for question in recognised.undecided)
        raise CheckpointError(
            f"Several readings of the checkpoint compute the reference to {TOLERANCE:g}; "
            f"use a reference patch with more structure, or say {flags}."
        )
    return chosen


def _output(candidate: Recognised, patch: FloatArray) -> FloatArray:
    with CpuGenerator(Network(build(candidate.spec), candidate.weights)) as generator:
        return generator(patch)


def _relative_error(output: FloatArray, reference: FloatArray) -> float:
    if output.shape != reference.shape:
        raise CheckpointError(
            f"The reference output has the shape {reference.shape}, but the generator makes "
            f"{output.shape} of the reference input."
        )
    difference = np.linalg.norm((output - reference).astype(np.float64))
    return float(difference / max(float(np.linalg.norm(reference.astype(np.float64))), 1e-12))
