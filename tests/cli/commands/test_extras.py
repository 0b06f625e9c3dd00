"""`translate --preview` and `--seam-score`: what they leave, and what later runs do to it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.batch_world import identity_model, scan, tiny_model
from support.io_files import unpacked
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app


class Folders:
    """Two scans of one stem, a model, and an output folder that is not there yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inputs = root / "scans"
        self.output = root / "results"
        self.model = tiny_model(root / "model.safetensors")
        scan(self.inputs / "a.nii.gz")
        scan(self.inputs / "sub" / "a.nii")
        self.pictures = [
            self.output / "a.nii.gz.preview.png",
            self.output / "sub" / "a.nii.preview.png",
        ]

    def translate(self, *options: str, inputs: Path | None = None) -> Result:
        words = ["translate", inputs or self.inputs, "--model", self.model, "--output", self.output]
        return CliRunner().invoke(app, [*map(str, words), *options])

    def rows(self, *options: str) -> list[dict[str, Any]]:
        report = self.root / "report.json"
        report.unlink(missing_ok=True)
        self.translate(*options, "--report", str(report))
        return json.loads(report.read_text())["studies"]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


@pytest.mark.slow
def test_a_picture_stands_beside_each_result_and_is_in_the_report(folders: Folders) -> None:
    rows = folders.rows("--preview")
    assert [row["preview"] for row in rows] == [str(path) for path in folders.pictures]
    for path in folders.pictures:
        with Image.open(path) as picture:
            assert picture.format == "PNG"
    assert "up to date" in folders.translate("--preview").output
    assert [row["preview"] for row in folders.rows("--preview")] == list(map(str, folders.pictures))


def test_a_picture_changes_no_voxel_and_is_not_needed_to_keep_a_result(folders: Folders) -> None:
    folders.translate()
    plain = unpacked(folders.output / "a.nii.gz")
    assert {row["status"] for row in folders.rows("--preview")} == {"up to date"}
    assert unpacked(folders.output / "a.nii.gz") == plain
    assert {row["status"] for row in folders.rows()} == {"up to date"}
    folders.pictures[0].unlink()
    assert {row["status"] for row in folders.rows()} == {"up to date"}
    assert [row["preview_drawn"] for row in folders.rows("--preview")] == [True, False]
    assert folders.pictures[0].exists()


def test_a_result_made_anew_leaves_no_picture_of_the_old_one(folders: Folders) -> None:
    folders.translate("--preview")
    folders.pictures[1].write_bytes(b"annotated by the user")
    assert {row["status"] for row in folders.rows("--blend", "constant")} == {"translated"}
    assert [path.exists() for path in folders.pictures] == [False, True]


def test_a_foreign_picture_is_never_overwritten(folders: Folders) -> None:
    folders.output.mkdir()
    folders.pictures[0].write_bytes(b"mine")
    rows = folders.rows("--preview")
    assert [row["class"] for row in rows] == ["occupied", None]
    assert folders.pictures[0].read_bytes() == b"mine"
    assert {row["status"] for row in folders.rows()} == {"translated", "up to date"}
    assert folders.rows("--preview")[0]["class"] == "occupied"
    assert folders.rows("--preview", "--overwrite")[0]["status"] == "translated"
    assert folders.pictures[0].read_bytes() != b"mine"


def test_a_result_that_cannot_be_stored_leaves_no_picture(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("cuda_cyclegan.pipelines.results.storing.write", refused)
    assert {row["class"] for row in folders.rows("--preview")} == {"write"}
    assert not any(path.exists() for path in folders.pictures)


def test_results_with_pictures_can_be_translated_themselves(folders: Folders) -> None:
    folders.translate("--preview")
    results, folders.output = folders.output, folders.root / "again"
    result = folders.translate("--allow-synthetic", inputs=results)
    assert result.exit_code == 0
    assert "2 studies" in result.output


def test_a_missing_seam_score_is_noted_with_the_reason(folders: Folders) -> None:
    folders.translate()
    early = " ".join(folders.translate("--seam-score").stdout.split())
    assert "note: --seam-score had no effect on 2 results that were made without it" in early
    small = ("--seam-score", "--patch", "64,64,64")
    for options in ((*small, "--overwrite"), small):
        shown = " ".join(folders.translate(*options).stdout.split())
        assert "note: 2 results have no seam score: a single patch covers the scan" in shown
        assert "had no effect" not in shown
    scored = folders.translate("--seam-score", "--overwrite").stdout
    assert "had no effect" not in scored
    assert "no seam score" not in scored


def test_the_seam_score_is_in_the_table_and_in_the_report(folders: Folders) -> None:
    identity_model(folders.model)
    result = folders.translate("--seam-score")
    assert "  seam" in result.stdout
    assert result.stdout.count("1.00") >= 3
    [row, _] = folders.rows("--seam-score", "--overwrite")
    assert row["seam_score"] == {"d": 1.0, "h": 1.0, "w": None, "worst": 1.0}
    [row, _] = folders.rows("--overwrite")
    assert row["seam_score"] is None
    assert "  seam" not in folders.translate("--overwrite").stdout
