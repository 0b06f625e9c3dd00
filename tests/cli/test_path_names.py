"""Names that no file can have, wherever a path is given: one sentence, and nothing is begun."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.batch_world import scan, tiny_model
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.pipelines.jobs.queue.location import VARIABLE

LONG = "a" * 300
SCANS = ("in", "--model", "m.safetensors", "--output", "out")
COMMANDS = {
    "translate": ("translate", *SCANS),
    "plan": ("plan", *SCANS),
    "submit": ("submit", *SCANS),
    "evaluate": ("evaluate", "in", "--truth", "in"),
    "report": ("report", "r.json"),
    "import": ("model", "import", "m.safetensors", "--output", "x.safetensors"),
    "calibrate": ("model", "calibrate", "m.safetensors", "--scans", "in", "--output", "x"),
    "export": ("model", "export-onnx", "m.safetensors", "--output", "x.onnx"),
    "edit": ("model", "edit", "m.safetensors", "--target", "T2", "--output", "x.safetensors"),
    "summary": ("jobs", "summary", "batch"),
    "bench": ("bench", "--model", "m.safetensors", "--device", "cpu"),
}
WRITTEN = [
    *(("translate", option) for option in ("--output", "--report", "--trace")),
    *((command, "--output") for command in ("plan", "submit", "import", "export", "edit")),
    *(("evaluate", option) for option in ("--json", "--csv", "--html")),
    *(("summary", option) for option in ("--report", "--html")),
    *(("bench", option) for option in ("--json", "--plot")),
    ("report", "--html"),
    ("calibrate", "--output"),
]
READ = [
    *((command, "--model") for command in ("translate", "plan", "submit", "bench")),
    *(("translate", option) for option in ("--cycle-check", "--input")),
    *(("evaluate", option) for option in ("--truth", "--mask", "--pairs")),
    *(("calibrate", option) for option in ("--scans", "--cycle")),
    ("import", "--reference"),
]


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    scan(tmp_path / "in" / "a.nii")
    tiny_model(tmp_path / "m.safetensors")
    (tmp_path / "r.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "private" / "queue.db"))
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def with_option(command: Sequence[str], option: str, value: str) -> list[str]:
    given = list(command)
    if option in given:
        given[given.index(option) + 1] = value
        return given
    return [*given, option, value]


def is_refusal(result: Result) -> bool:
    """Whether a command ended in good order, as one that cannot be done."""
    return (
        isinstance(result.exception, SystemExit)
        and result.exit_code == 2
        and "looks like a bug" not in result.output
    )


def refused(result: Result) -> str:
    """Return the message, shown once, of a command that cannot be done."""
    assert is_refusal(result), (result, result.output)
    return " ".join(result.output.replace("\n", "").split())


@pytest.mark.parametrize("name", [LONG, f"{LONG}.nii.gz", f"{LONG}/x.json"])
def test_a_name_that_is_too_long_is_refused(world: Path, name: str) -> None:
    before = sorted(world.rglob("*"))
    wrong: list[str] = []
    for command, option in (*WRITTEN, *READ):
        result = run(*with_option(COMMANDS[command], option, name))
        left = [path for path in sorted(world.rglob("*")) if "private" not in path.parts]
        if not is_refusal(result) or left != before:
            wrong.append(f"{command} {option}: {result!r}, {result.output}, {left}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("option", ["--report", "--trace"])
def test_a_report_that_could_not_be_written_is_refused_before_anything_is_computed(
    option: str,
) -> None:
    reported = refused(run(*with_option(COMMANDS["translate"], option, f"{LONG}.json")))
    assert "is too long for its disk" in reported.replace("│", "").replace("  ", " ")
    assert not os.path.lexists("out")


@pytest.mark.parametrize("line", ['model = "a\\u0000b"', 'input = ["in", "a\\u0000"]'])
def test_a_zero_byte_in_a_config_file_is_reported_with_its_place(world: Path, line: str) -> None:
    (world / "c.toml").write_text(f"[translate]\n{line}\n")
    reported = refused(run("--config", "c.toml", *COMMANDS["plan"]))
    key = line.split()[0]
    assert f"c.toml: [translate] {key} contains a zero byte, which names may not." in reported
