"""Where the figures of `bench` go: tables to the terminal, JSON and plots to files."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..report_file import STDOUT, write_json
from ..terminal.streams import columns_of, say, tell


@dataclass(frozen=True, slots=True)
class View:
    """json, plot: files; `STDOUT` prints the JSON and nothing else."""

    json: Path | None
    plot: Path | None

    def progress(self, sentence: str) -> None:
        """What is being done."""
        tell([sentence], sys.stderr)

    @property
    def columns(self) -> int | None:
        """Width of the terminal."""
        return columns_of(sys.stdout)

    def show(self, lines: Iterable[str]) -> None:
        """Lines that keep their columns."""
        if self.json != STDOUT:
            for line in lines:
                say(line, sys.stdout)

    def tell(self, sentences: Iterable[str]) -> None:
        """Sentences that may be broken."""
        if self.json != STDOUT:
            tell(sentences, sys.stdout)

    def store(self, content: dict[str, Any]) -> None:
        """Write the JSON where it is wanted. Raises WriteError."""
        if self.json:
            write_json(content, self.json)
