"""What `doctor` finds out, one line a thing."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["ok", "warning", "failure"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. remedy: what to do about it, unless the state is ok.

    A warning costs speed or comfort; a failure means that something offered does not work.

    subject: what was looked at. words: what was found.
    """

    subject: str
    state: Severity
    words: str
    remedy: str | None = None


def ok(subject: str, words: str) -> Finding:
    """Nothing to do."""
    return Finding(subject, "ok", words)


def warning(subject: str, words: str, remedy: str) -> Finding:
    """Works, but could be better."""
    return Finding(subject, "warning", words, remedy)


def failure(subject: str, words: str, remedy: str) -> Finding:
    """Does not work."""
    return Finding(subject, "failure", words, remedy)
