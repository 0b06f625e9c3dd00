"""Pipes, devices and folders in the place of what commands read: refused at once, in a sentence."""

import json
import os
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from support.batch_world import scan
from support.translate_world import World
from typer.testing import CliRunner

from cuda_cyclegan import translate_folder
from cuda_cyclegan.cli.app import app
from cuda_cyclegan.io.errors import ScanError

nibabel: Any = _nibabel  # typed only in part

SECONDS = 20.0
"""Time after which a pipe gets a writer, so that a test that waits for one fails."""

VOXELS = np.arange(16**3, dtype=np.int16).reshape(16, 16, 16)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    scan(world.inputs / "sound.nii")
    return world


@pytest.fixture(params=["pipe", "link to a pipe", "device", "folder"])
def irregular(request: pytest.FixtureRequest) -> Generator[Callable[[Path], Path]]:
    """Function that puts something other than a regular file at a place."""
    pipes: list[Path] = []
    over = threading.Event()

    def release() -> None:
        if not over.wait(SECONDS):
            for pipe in pipes:
                os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))

    def put(place: Path) -> Path:
        match request.param:
            case "folder":
                place.mkdir()
            case "device":
                place.symlink_to("/dev/zero")
            case "pipe":
                os.mkfifo(place)
                pipes.append(place)
            case _:
                pipes.append(place.with_name("pipe"))
                os.mkfifo(pipes[0])
                place.symlink_to("pipe")
        return place

    watch = threading.Thread(target=release, daemon=True)
    watch.start()
    yield put
    over.set()
    watch.join()


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(map(str, words)))
    assert "Traceback" not in done.output
    assert "looks like a bug" not in done.output
    return done.exit_code, " ".join(done.output.split())


MODEL_COMMANDS: dict[str, tuple[str, ...]] = {
    "inspect": ("model", "inspect", "FILE"),
    "inspect onnx": ("model", "inspect", "FILE.onnx"),
    "verify": ("model", "verify", "FILE"),
    "edit": ("model", "edit", "FILE", "--output", "new.safetensors"),
    "combine": ("model", "combine", "FILE", "other.safetensors", "--output", "new.safetensors"),
    "export": ("model", "export-onnx", "FILE", "--output", "new.onnx"),
    "import": ("model", "import", "FILE.pth", "--output", "new.safetensors"),
    "calibrate": ("model", "calibrate", "FILE", "--scans", "scans", "--output", "new.safetensors"),
    "translate": ("translate", "scans", "--model", "FILE", "--output", "out", "--device", "cpu"),
    "plan": ("plan", "scans", "--model", "FILE", "--output", "out", "--device", "cpu"),
    "bench": ("bench", "--model", "FILE", "--device", "cpu"),
    "submit": ("submit", "scans", "--model", "FILE", "--output", "out", "--queue", "./queue.db"),
    "config": ("--config", "FILE", "discover", "scans"),
}


@pytest.mark.parametrize("command", MODEL_COMMANDS)
def test_models_and_configs(
    world: World,
    irregular: Callable[[Path], Path],
    command: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(world.inputs.parent)
    words = MODEL_COMMANDS[command]
    [name] = [word for word in words if word.startswith("FILE")]
    irregular(Path(name))
    status, reported = run(*words)
    assert (status, name in reported) == (2, True), reported


def test_the_config_of_a_folder(
    world: World, irregular: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.inputs.parent)
    irregular(Path("cuda-cyclegan.toml"))
    status, reported = run("discover", "scans")
    assert (status, "cuda-cyclegan.toml" in reported) == (2, True), reported


def text_header(place: Path, voxels: str) -> None:
    if place.suffix == ".mhd":
        place.write_text(
            "ObjectType = Image\nNDims = 3\nDimSize = 16 16 16\nElementType = MET_SHORT\n"
            f"ElementSpacing = 1 1 1\nElementDataFile = {voxels}\n"
        )
        return
    place.write_text(
        "NRRD0004\ntype: short\ndimension: 3\nsizes: 16 16 16\nencoding: raw\nendian: little\n"
        "space: left-posterior-superior\nspace directions: (1,0,0) (0,1,0) (0,0,1)\n"
        f"space origin: (0,0,0)\ndata file: {voxels}\n\n"
    )


@pytest.mark.parametrize("kind", ["nhdr", "mhd", "img", "mat", "dcm", "nii"])
def test_parts_of_scans(world: World, irregular: Callable[[Path], Path], kind: str) -> None:
    """Files named in a header, or next to it; the other study is translated."""
    part = world.inputs / ("a.dcm" if kind == "dcm" else f"a.{kind}")
    match kind:
        case "nhdr" | "mhd":
            part = world.inputs / "a.voxels"
            text_header(world.inputs / f"a.{kind}", part.name)
        case "img" | "mat":
            pair = nibabel.Spm99AnalyzeImage(VOXELS, np.eye(4))
            pair.to_filename(world.inputs / "a.hdr")
            part.unlink(missing_ok=True)
        case _:
            pass
    is_folder = irregular(part).is_dir()  # which is searched, as any other
    run("translate", *world.arguments("--device", "cpu", "--report", str(world.report)))
    report = json.loads(world.report.read_text())
    made = [row["name"] for row in report["studies"] if row["status"] == "translated"]
    assert made == ["sound.nii"]
    refused = [Path(skip["path"]).stem for skip in report["skipped"]]
    refused += [Path(row["name"]).stem for row in report["studies"] if row["status"] == "failed"]
    assert is_folder or "a" in refused


@pytest.mark.parametrize("kind", ["nhdr", "mhd"])
def test_a_zero_byte_in_a_name_fails_that_study_alone(world: World, kind: str) -> None:
    text_header(world.inputs / f"a.{kind}", "a\0b.raw")
    status, reported = run("translate", *world.arguments("--device", "cpu"))
    assert status == 1
    assert "has a control character in line" in reported
    assert (world.output / "sound.nii").exists()


def test_a_zero_byte_in_the_output_s_name_is_one_sentence(world: World) -> None:
    with pytest.raises(ScanError, match="contains a zero byte"):
        translate_folder(world.inputs, world.model, "a\0b", device="cpu")
