"""Memory over a whole batch: rows tell each study's own peak, and nothing piles up."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.batch_world import identity_model, scan
from support.bench_batches import write_model

PATCHES = ("--inference", "patches")


def peaks(root: Path, *options: str, model: Path | None = None) -> dict[str, int]:
    """Peak bytes of each study of a run over `root`/scans."""
    model, report = model or identity_model(root / "model.safetensors"), root / "report.json"
    paths = [root / "scans", "--model", model, "--output", root / "out", "--report", report]
    command = [sys.executable, "-m", "cuda_cyclegan", "translate", *map(str, paths), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(report.read_text())["studies"]
    if any(row["peak_counts_from"] == "run" for row in rows):
        pytest.skip("this kernel does not reset a process's peak")
    return {row["name"]: row["peak_host_bytes"] for row in rows}


@pytest.mark.process
def test_a_large_study_is_seen_in_rows_beside_it_only(tmp_path: Path) -> None:
    extents = (160, 160, 160)
    scan(tmp_path / "scans" / "b.nii", shape=extents)
    for name in "acdefg":
        scan(tmp_path / "scans" / f"{name}.nii")
    found = peaks(tmp_path, *PATCHES, "--patch", "64,64,64")
    least = 160**3 * 4  # what goes into the network, the smaller half of what is there at once
    assert found["b.nii"] - found["g.nii"] > least


@pytest.mark.process
def test_a_plan_foresees_the_peak(tmp_path: Path) -> None:
    """The memory of the program itself is measured by a tiny study and subtracted."""
    busy, idle = tmp_path / "busy", tmp_path / "idle"
    scan(busy / "scans" / "a.nii", shape=(64, 64, 64))
    scan(idle / "scans" / "a.nii")
    model = write_model(busy / "m.safetensors", 24, 2, (64, 64, 64))
    paths = [busy / "scans", "--model", model, "--output", busy / "out"]
    command = [sys.executable, "-m", "cuda_cyclegan", "plan", *map(str, paths), *PATCHES]
    planned = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    [foreseen] = re.findall(r"RAM: ([\d.]+) MiB", planned)
    [peak], [program] = peaks(busy, *PATCHES, model=model).values(), peaks(idle, *PATCHES).values()
    assert 0.6 < (peak - program) / (float(foreseen) * 2**20) < 1.1


@pytest.mark.slow
def test_thirty_studies_take_no_more_than_ten(tmp_path: Path) -> None:
    for index in range(30):
        scan(tmp_path / "scans" / f"{index:02}.nii.gz", index, (96, 96, 96))
    found = list(peaks(tmp_path, *PATCHES, "--patch", "48,48,48").values())
    one_study = 96**3 * (2 + 4 + 4)
    # The first studies still load code; one array a study kept would add twenty studies' worth.
    assert max(found[20:]) - max(found[:10]) < 3 * one_study


@pytest.mark.slow
def test_a_spread_takes_what_its_plan_says_however_many_flips_there_are(tmp_path: Path) -> None:
    extents, patch = (160, 160, 160), (*PATCHES, "--patch", "64,64,64")
    scan(tmp_path / "scans" / "b.nii", shape=extents)
    for name in "acdefg":
        scan(tmp_path / "scans" / f"{name}.nii")
    two, eight = (peaks(tmp_path, *patch, "--overwrite", "--spread", count) for count in ("2", "8"))
    array = 160**3 * 4
    # If each were kept, the six flips more would be six arrays more.
    assert abs(eight["b.nii"] - two["b.nii"]) < 3 * array
    # The scan as it is stored, what comes out of one flip, the two maps and the result.
    foreseen = 160**3 * (2 + 4 + 2 * 4 + 4)
    assert foreseen / 2 < eight["b.nii"] - eight["g.nii"] < foreseen + 2 * array
