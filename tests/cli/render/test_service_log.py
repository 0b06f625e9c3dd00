"""Lines of services: for people, for journald, and in a rotated file."""

import json
import os
import stat
from pathlib import Path

import pytest

from cuda_cyclegan.cli.errors import complain
from cuda_cyclegan.cli.render import log_file as files
from cuda_cyclegan.cli.render.log_file import log_file
from cuda_cyclegan.cli.render.service_log import log


def test_a_line_has_its_time_and_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    log("a\nb", "warning")
    day, clock, text = capsys.readouterr().err.split(" ", 2)
    assert (len(day), len(clock), text) == (10, 8, "a\\nb\n")


def test_journald_gets_levels_and_no_time(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{state.st_dev}:{state.st_ino}")
    log("one")
    log("two", "error")
    complain("three.")
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")  # of a parent whose stderr this is not
    complain("four.")
    assert capfd.readouterr().err == "<6>one\n<3>two\n<3>Error: three.\nError: four.\n"


def test_a_log_file_has_text_or_json_lines(tmp_path: Path) -> None:
    text, lines = tmp_path / "text.log", tmp_path / "lines.log"
    with log_file(text, "text"):
        log("one", "warning")
        complain("two.")
    with log_file(lines, "json"):
        log("one", status="failed", seconds=2.5)
    assert [line[20:] for line in text.read_text().splitlines()] == [
        "warning one",
        "error Error: two.",
    ]
    [found] = map(json.loads, lines.read_text().splitlines())
    assert found.pop("time")
    assert found == {"level": "info", "message": "one", "status": "failed", "seconds": 2.5}
    log("after")
    assert "after" not in lines.read_text()
    assert stat.S_IMODE(text.stat().st_mode) == 0o600


def test_a_log_file_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FILE_BYTES", 200)
    monkeypatch.setattr(files, "FILES", 3)
    with log_file(tmp_path / "a.log", "text"):
        for number in range(50):
            log(f"line {number}")
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["a.log", "a.log.1", "a.log.2"]
    assert all(path.stat().st_size <= 200 for path in tmp_path.iterdir())
    assert "line 49" in (tmp_path / "a.log").read_text()


def test_a_full_disk_loses_lines_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = tmp_path / "full.log"
    full.symlink_to("/dev/full")
    with log_file(full, "text"):
        log("one")
    assert capsys.readouterr().err.endswith(" one\n")
