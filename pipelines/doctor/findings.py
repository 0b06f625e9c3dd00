"""Findings of `doctor`, one line per subject."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["ok", "warning", "failure"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding on one subject. remedy: advice for the user, unless the state is ok.

    A warning costs speed or comfort; a failure means that a feature does not work.

    subject: the subject examined. state: its severity. words: description of the finding.
    """

    subject: str
    state: Severity
    words: str
    remedy: str | None = None


def ok(subject: str, words: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(subject, "ok", words)


def warning(subject: str, words: str, remedy: str) -> Finding:
    """Return a finding on a subject that works but could be improved."""
    return Finding(subject, "warning", words, remedy)


def failure(subject: str, words: str, remedy: str) -> Finding:
    """Return a finding on a subject that does not work."""
    return Finding(subject, "failure", words, remedy)
