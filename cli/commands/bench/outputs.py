"""Outputs of `bench`: what it prints, and its files."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...render.documents import STDOUT, write_json
from ...render.terminal import columns_of, print_line, print_sentences


@dataclass(frozen=True, slots=True)
class Outputs:
    """Outputs of a benchmark. json, plot: files; `STDOUT` prints the JSON and nothing else."""

    json: Path | None
    plot: Path | None

    def progress(self, sentence: str) -> None:
        """Show the current task."""
        print_sentences([sentence], sys.stderr)

    @property
    def columns(self) -> int | None:
        """Width of the terminal."""
        return columns_of(sys.stdout)

    def print_lines(self, lines: Iterable[str]) -> None:
        """Show lines that keep their columns."""
        if self.json != STDOUT:
            for line in lines:
                print_line(line, sys.stdout)

    def print_sentences(self, sentences: Iterable[str]) -> None:
        """Show sentences that may be wrapped."""
        if self.json != STDOUT:
            print_sentences(sentences, sys.stdout)

    def store(self, content: dict[str, Any]) -> None:
        """Write the JSON if it was requested. Raises WriteError."""
        if self.json:
            write_json(content, self.json)
