"""The discover command: a row for everything, for people and for scripts."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.batch_world import scan, tiny_model
from support.dicom_phantoms import PATIENT_ID, Phantom
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app

CT = Phantom()


def discover(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["discover", *map(str, arguments)])


@pytest.fixture
def disc(tmp_path: Path) -> Path:
    folder = tmp_path / "disc"
    CT.write(folder / "ct")
    Phantom("MR", slices=3, number=1, series="1.2.3.4.5.1").write(folder / "scout")
    Phantom(step=(0.0, 0.5, 2.0), number=2, series="1.2.3.4.5.2").write(folder / "tilted")
    scan(folder / "scan.nii.gz")
    (folder / "AUTORUN.INF").write_text("[autorun]")
    return folder


def test_every_series_and_scan_has_a_row_and_a_reason(disc: Path) -> None:
    result = discover(disc)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    [ct] = [line for line in lines if "/ct/series-0003-" in line]
    *row, _, source, other = ct.split()
    assert row[-5:] == ["CT", "12", "24x20x12", "0.5x0.75x2", "accepted"]
    assert (source, other) == ("Modality,", "description")
    assert any(line.startswith("rejected: ") and "14.04 degrees" in line for line in lines)
    assert any(line.startswith("skipped: ") and "only 3 slices" in line for line in lines)
    assert any("scan.nii.gz" in line and "nifti" in line for line in lines)
    assert lines[-1] == "Found: 2 to translate, 1 rejected, 1 skipped, 1 other file"


def test_scan_skipped_anyway_is_reported_without_further_advice(disc: Path) -> None:
    Phantom("MR", slices=1, number=9, series="1.2.3.4.5.9").write(disc / "single")
    for name in ("single", "ct"):
        for path in sorted((disc / name).iterdir()):
            shutil.copy(path, path.with_name(f"{path.name} again"))
    result = discover(disc)
    [skipped] = [
        line for line in result.output.splitlines() if "skipped: " in line and "0009" in line
    ]
    assert skipped.endswith(
        "(MR, 1 image): it has only 1 slice of this kind, which is not a volume"
    )
    assert result.output.count("copies of images ignored") == 1
    assert "1 copy of images ignored" not in result.output


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_narrow_encoding_gets_plain_lines_and_escaped_names(
    tmp_path: Path, encoding: str
) -> None:
    scan(tmp_path / "患者.nii")
    done = subprocess.run(
        [sys.executable, "-m", "cuda_cyclegan", "discover", str(tmp_path)],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        text=True,
        encoding=encoding,
        check=True,
    )
    _, line, row, *_ = done.stdout.splitlines()
    assert set(line) == {"-"}
    assert "/\\u60a3\\u8005.nii " in row


def test_json_is_a_promise_to_scripts(disc: Path) -> None:
    found = json.loads(discover(disc, "--json").stdout)
    assert found["schema"] == "cuda-cyclegan/discovery/1"
    assert {key: type(value).__name__ for key, value in found.items()} == {
        "schema": "str",
        "series": "list",
        "files": "list",
        "skipped": "list",
        "ignored": "int",
        "notes": "list",
    }
    [ct] = [row for row in found["series"] if row["number"] == 3]
    assert {key: type(value).__name__ for key, value in ct.items()} == {
        **dict.fromkeys(["label", "folder", "study", "modality", "verdict", "kind"], "str"),
        "read_as": "str",
        **dict.fromkeys(["number", "images", "duplicates", "volumes"], "int"),
        **dict.fromkeys(["notes", "extents", "spacing", "files"], "list"),
        "reason": "NoneType",
        "failed": "bool",
    }
    [scan] = found["files"]
    assert {key: type(value).__name__ for key, value in scan.items()} == {
        **dict.fromkeys(["path", "format", "verdict", "read_as"], "str"),
        **dict.fromkeys(["extents", "spacing", "notes"], "list"),
        "reason": "NoneType",
        "failed": "bool",
        "volumes": "int",
    }
    assert [row["verdict"] for row in found["series"]] == ["skipped", "refused", "taken"]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_texts_of_headers_are_shown_only_where_that_is_asked_for(
    disc: Path, options: list[str]
) -> None:
    hidden, shown = discover(disc, *options).output, discover(disc, "--show-phi", *options).output
    for text in (CT.study, CT.series, "plain CT", PATIENT_ID, "Doe"):
        assert text not in hidden
    assert "plain CT" in shown
    assert PATIENT_ID not in shown


def test_filters_and_uneven_stacks(disc: Path) -> None:
    def verdicts(*options: str) -> dict[int, Any]:
        rows = json.loads(discover(disc, "--json", *options).stdout)["series"]
        return {row["number"]: row["verdict"] for row in rows}

    assert verdicts("--allow-uneven") == {1: "skipped", 2: "taken", 3: "taken"}
    assert verdicts("--min-slices", "3") == {1: "taken", 2: "refused", 3: "taken"}
    assert verdicts("--modality", "MR", "--min-slices", "2") == {
        1: "taken",
        2: "skipped",
        3: "skipped",
    }


def test_several_volumes_are_refused_as_by_plan_unless_one_is_chosen(tmp_path: Path) -> None:
    scan(tmp_path / "in" / "four.nii.gz", shape=(8, 8, 8, 3))
    for time in range(3):

        def edit(data: Any, at: int, time: int = time) -> None:
            data.SOPInstanceUID = f"{data.SOPInstanceUID}.{time}"
            data.InstanceNumber = 12 * time + at + 1
            data.ContentTime = f"1010{time:02}"

        Phantom("MR", seed=time).write(tmp_path / "in" / "mr", edit, prefix=f"t{time}")
    model = tiny_model(tmp_path / "m.safetensors")
    arguments = [tmp_path / "in", "--model", model, "--output", tmp_path / "out"]
    for options, refused in (((), 2), (("--volume", "1"), 0), (("--volume", "7"), 2)):
        found = discover(tmp_path / "in", *options)
        planned = CliRunner().invoke(app, ["plan", *map(str, arguments), *options])
        assert (found.exit_code, planned.exit_code) == (0, 0)
        assert found.output.count("rejected: ") == refused, found.output
        assert planned.output.count("would fail: ") == refused, planned.output
        verdicts = json.loads(discover(tmp_path / "in", "--json", *options).stdout)
        rows = [*verdicts["series"], *verdicts["files"]]
        assert [row["volumes"] for row in rows] == [3, 3]
        assert {row["verdict"] for row in rows} == {"refused" if refused else "taken"}


def test_paths_are_relative_to_the_current_folder_and_stand_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan(tmp_path / "scans" / "a.nii")
    (tmp_path / "scans" / "cut.nii").write_bytes(b"cut")
    monkeypatch.chdir(tmp_path)
    _, _, first, second, failed, _ = discover("scans").stdout.splitlines()
    assert [line.split()[0] for line in (first, second)] == ["scans/a.nii", "scans/cut.nii"]
    assert failed.startswith("failed: scans/cut.nii is truncated")
    found = json.loads(discover("scans", "--json").stdout)["files"]
    assert found[0]["path"] == str(tmp_path / "scans" / "a.nii")
    (tmp_path / "b.txt").write_text("no scan")
    alone = discover("b.txt")
    assert alone.output.count("b.txt: ") == 1
    assert alone.stderr == "Error: No study found in b.txt.\n"


def test_nothing_found_is_its_own_status(tmp_path: Path) -> None:
    (tmp_path / "x.txt").touch()
    result = discover(tmp_path)
    assert result.exit_code == 3
    assert "No study found" in result.stderr
    missing = discover(tmp_path / "gone")
    assert missing.exit_code == 2
    assert "does not exist" in missing.stderr
