"""A disk that fills up in the middle of a batch costs only the studies that no longer fit."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.batch_world import scan, tiny_model
from support.fault_kills import START

STUDIES = 12
AT_HAND = 3
"""Studies that the network may be done with when the first of a worker does not fit."""
SHAPE = (32, 28, 24)
RESULT_BYTES = 32 * 28 * 24 * 2
ON_A_SMALL_DISK = """
cd '{root}'
mount -t tmpfs -o size={size} none '{output}' || exit 99
{command} --report first.json
find '{output}' -name '*.part' >parts
mount -o remount,size=64m '{output}'
{command} --report second.json
find '{output}' -name '*.part' >>parts
cp -r '{output}' copy
"""


def command(root: Path, output: Path, workers: int) -> list[str]:
    paths = [str(root / "scans"), "--model", str(root / "model.safetensors")]
    start = [sys.executable, "-c", START, str(workers), "translate"]
    return [*start, *paths, "--output", str(output), "--device", "cpu"]


def report(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


@pytest.fixture
def world(tmp_path: Path) -> Path:
    tiny_model(tmp_path / "model.safetensors")
    for number in range(STUDIES):
        scan(tmp_path / "scans" / f"{number}.nii", number, SHAPE)
    (tmp_path / "results").mkdir()
    return tmp_path


@pytest.mark.process
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_study_that_no_longer_fits_fails_and_is_done_once_there_is_space(
    world: Path, workers: int
) -> None:
    output = world / "results"
    words = [f"'{word}'" for word in command(world, output, workers)]
    script = ON_A_SMALL_DISK.format(
        size=4 * RESULT_BYTES, root=world, output=output, command=" ".join(words)
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip("this user may not mount a disk")
    first, second = report(world / "first.json"), report(world / "second.json")
    assert 1 <= first["totals"]["translated"] <= 4, done.stderr
    assert first["totals"]["failed"] == STUDIES - first["totals"]["translated"]
    failed = [row for row in first["studies"] if row["status"] == "failed"]
    assert {row["class"] for row in failed} == {"write"}
    assert any("disk is full" in row["reason"] or "No space" in row["reason"] for row in failed)
    in_vain = [row for row in failed if "infer" in row["stages"]]
    assert 1 <= len(in_vain) <= AT_HAND * workers
    assert all("was not started" in row["reason"] for row in failed if row not in in_vain)
    assert (world / "parts").read_text() == ""
    assert second["totals"]["up_to_date"] == first["totals"]["translated"]
    assert second["totals"]["translated"] == first["totals"]["failed"]
    assert len(list((world / "copy").glob("*.nii"))) == STUDIES


@pytest.mark.process
def test_a_file_that_may_not_grow_fails_alone(world: Path) -> None:
    scan(world / "scans" / "large.nii", 9, (40, 40, 40))

    def limit() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * RESULT_BYTES, hard))

    output = world / "results"
    done = subprocess.run(
        [*command(world, output, 1), "--report", str(world / "report.json")],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    [failed] = [row for row in report(world / "report.json")["studies"] if row["class"]]
    assert (failed["name"], failed["class"]) == ("large.nii", "write")
    assert "largest file size allowed" in failed["reason"]
    assert len(list(output.glob("*.nii"))) == STUDIES
    assert list(output.glob("*.part")) == []
