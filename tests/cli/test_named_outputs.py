"""Files that a user names as outputs: a pipe, device or link at that place is never replaced."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.batch_world import scan, stored, tiny_model
from support.reports import BATCH, written
from support.translate_world import World
from support.waiting import ENOUGH
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app


def translate(root: Path, option: str) -> "list[object]":
    world = World(root)
    scan(world.inputs / "a.nii")
    return ["translate", *world.arguments("--device", "cpu", "--quiet"), option]


def evaluate(root: Path, option: str) -> "list[object]":
    voxels = np.arange(16**3, dtype=np.int16).reshape(16, 16, 16)
    stored(root / "results" / "a.nii", voxels)
    stored(root / "truth" / "a.nii", voxels + 1)
    return ["evaluate", root / "results", "--truth", root / "truth", option]


def model(root: Path, command: str, *words: str) -> "list[object]":
    return ["model", command, World(root).model, *words, "--output"]


TINY_BENCH = ("--ngf", 4, "--blocks", 1, "--patch", "16,16,16", "--seconds", "0.05")

OUTPUTS: dict[str, Callable[[Path], "list[object]"]] = {
    "translate --report": lambda root: translate(root, "--report"),
    "translate --trace": lambda root: translate(root, "--trace"),
    "evaluate --json": lambda root: evaluate(root, "--json"),
    "evaluate --csv": lambda root: evaluate(root, "--csv"),
    "evaluate --html": lambda root: evaluate(root, "--html"),
    "report --html": lambda root: ["report", written(BATCH, root / "r.json"), "--html"],
    "model edit": lambda root: model(root, "edit", "--name", "new"),
    "model combine": lambda root: model(
        root, "combine", str(tiny_model(root / "other.safetensors", seed=1))
    ),
    "model export-onnx": lambda root: model(root, "export-onnx"),
}


def run(words: "list[object]") -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name == "evaluate --html"))
        for name in OUTPUTS
    ],
)
def test_a_pipe_gets_the_document_and_a_link_leads_to_it(tmp_path: Path, output: str) -> None:
    words = OUTPUTS[output](tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "file").touch()
    got: list[bytes] = []
    reader = threading.Thread(
        target=lambda: got.append((tmp_path / "pipe").read_bytes()), daemon=True
    )
    reader.start()
    done = run([*words, tmp_path / "pipe"])
    assert done.exit_code == 0, done.output
    reader.join(ENOUGH)
    assert (tmp_path / "pipe").is_fifo()
    force = [] if words[0] == "translate" else ["--force"]
    done = run([*words, tmp_path / "link", *force])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "link").is_symlink()
    assert got[0][:15] == (tmp_path / "file").read_bytes()[:15] != b""


@pytest.mark.parametrize("output", OUTPUTS)
def test_unwritable_output_is_refused_before_the_work(tmp_path: Path, output: str) -> None:
    words = OUTPUTS[output](tmp_path)
    (tmp_path / "dangling").symlink_to("nowhere")
    done = run([*words, tmp_path / "dangling"])
    assert done.exit_code == 2
    assert "is a link to" in " ".join(done.stderr.split())
    assert not (tmp_path / "results" / "a.nii").exists() or words[0] == "evaluate"
    assert (tmp_path / "dangling").is_symlink()


@pytest.mark.slow
def test_a_plot_goes_to_where_its_link_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("plot.svg").symlink_to("file")
    assert run(["bench", *TINY_BENCH, "--plot", "plot.svg"]).exit_code == 0
    assert Path("plot.svg").is_symlink()
    assert b"<svg" in Path("file").read_bytes()


@pytest.mark.process
@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="this system has no names of open files")
def test_standard_output_by_its_name_and_a_command_get_the_report(tmp_path: Path) -> None:
    world = World(tmp_path)
    scan(world.inputs / "a.nii")
    done = world.run("--device", "cpu", "--report", "/dev/stdout")
    assert done.returncode == 0
    assert done.stdout.startswith("{")
    assert done.stdout.endswith("}\n")
    page = ["report", written(BATCH, tmp_path / "r.json"), "--html"]
    shell = '"$@" /dev/stdout > page; "$@" >(cat > copy); wait $!'
    command = ["bash", "-c", shell, "bash", sys.executable, "-m", "cuda_cyclegan", *page]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert done.stderr == b""
    copy = (tmp_path / "copy").read_bytes()
    assert copy.startswith(b"<!DOCTYPE html>")
    assert (tmp_path / "page").read_bytes().startswith(copy + b"Written: /dev/stdout")


@pytest.mark.parametrize("kind", ["link", "pipe", "link to a pipe", "dangling link"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_result_never_takes_the_place_of_a_link_or_pipe(
    tmp_path: Path, kind: str, overwrite: bool
) -> None:
    world = World(tmp_path)
    scan(world.inputs / "a.nii")
    scan(world.inputs / "b.nii")
    assert world.translate("--device", "cpu").exit_code == 0
    place, far = world.output / "a.nii", tmp_path / "far"
    if kind == "link":
        place.rename(far)
    elif kind == "link to a pipe":
        place.unlink()
        os.mkfifo(far)
    else:
        place.unlink()
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(far)
    before = place.lstat().st_ino
    done = world.translate("--device", "cpu", *(["--overwrite"] if overwrite else []))
    is_up_to_date = kind == "link" and not overwrite
    assert done.exit_code == (0 if is_up_to_date else 1)
    assert is_up_to_date or f"{place} " in " ".join(done.stderr.split())
    assert place.lstat().st_ino == before
    assert (world.output / "b.nii").exists()
