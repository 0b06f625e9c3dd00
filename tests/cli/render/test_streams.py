"""Sentences on a terminal: as wide as the one that they go to, and broken between words."""

import fcntl
import io
import os
import struct
import termios
from pathlib import Path

import pytest
from rich.console import Console

from cuda_cyclegan.cli.render.progress_bars import LiveProgress
from cuda_cyclegan.cli.render.terminal import LastingStream, columns_of, print_line
from cuda_cyclegan.pipelines.events import Remark

FULL = Path("/dev/full")
SENTENCE = "word " * 30


@pytest.mark.parametrize(("said", "columns"), [(None, 132), ("90", 90)])
def test_the_width_is_that_of_the_stream_s_own_terminal(
    monkeypatch: pytest.MonkeyPatch, said: str | None, columns: int
) -> None:
    """Standard output goes elsewhere, as it does here while tests run."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if said:
        monkeypatch.setenv("COLUMNS", said)
    other, end = os.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("4H", 24, 132, 0, 0))
    with os.fdopen(end, "w") as stream:
        assert columns_of(stream) == columns
    os.close(other)
    assert columns_of(io.StringIO()) is None


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("width", "lines"), [(80, 3), (200, 1)])
def test_text_above_the_bars_is_as_wide_as_the_terminal(
    monkeypatch: pytest.MonkeyPatch, width: int, lines: int
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    with LiveProgress(Console(file=screen, width=width), verbose=False) as live:
        live(Remark(SENTENCE))
    said = [line for line in screen.getvalue().splitlines() if "word" in line]
    assert len(said) == lines
    assert max(map(len, said)) <= width + len("\x1b[2K")
    assert all(line.rstrip().endswith("word") for line in said)


@pytest.mark.skipif(not FULL.exists(), reason="this system has no file that is always full")
def test_a_log_goes_on_once_its_disk_has_space(tmp_path: Path) -> None:
    with LastingStream(FULL.open("wb")) as log, (tmp_path / "log").open("wb") as with_room:
        for line in ("lost", "lost too"):
            print_line(line, log)
        assert log.lost
        assert os.path.samestat(os.fstat(log.fileno()), FULL.stat())
        os.dup2(with_room.fileno(), log.fileno())
        print_line("kept", log)
    assert (tmp_path / "log").read_text() == "kept\n"


def test_a_log_whose_reader_is_gone_leads_nowhere() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with LastingStream(os.fdopen(writer, "wb")) as log:
        for _ in range(2):
            print_line("lost", log)
        assert log.lost is None
        assert os.path.samestat(os.fstat(log.fileno()), os.stat(os.devnull))  # noqa: PTH116
