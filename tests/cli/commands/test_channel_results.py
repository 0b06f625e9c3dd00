"""Results of studies of several channels: their files, how they are resumed, their previews."""

import json
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
import SimpleITK as _SimpleITK
from PIL import Image
from support.batch_world import mixing_model, scan
from support.clinic import NAMES, Clinic, values
from support.result_marks import read_mark

from cuda_cyclegan.pipelines.results import storing

nibabel: Any = _nibabel
SimpleITK: Any = _SimpleITK


@pytest.fixture
def clinic(tmp_path: Path) -> Clinic:
    return Clinic(tmp_path)


class TestResults:
    def test_one_file_a_channel(self, clinic: Clinic) -> None:
        clinic.makes_two()
        rows = clinic.translate("--preview")
        assert [*rows] == [name.replace("_T1w", "_T1w_CT") for name in NAMES]
        first, second = (values(clinic.file(1, each)) for each in ("T1w", "T2w"))
        np.testing.assert_allclose(values(clinic.result(1, "T1w_CT")), first + second)
        np.testing.assert_allclose(values(clinic.result(1, "T1w_PET")), first - second)
        for target in ("CT", "PET"):
            mark = read_mark(clinic.result(1, f"T1w_{target}"))
            assert mark is not None
            assert mark.target == target
        row = rows[NAMES[0].replace("_T1w", "_T1w_CT")]
        assert row["output_content"]["files"] == 2
        made = {path.name for path in (clinic.output / "sub-01").iterdir()}
        assert made == {
            "sub-01_T1w_CT.nii.gz",
            "sub-01_T1w_PET.nii.gz",
            "sub-01_T1w_CT.nii.gz.preview.png",
        }

    def test_in_another_format(self, clinic: Clinic) -> None:
        clinic.makes_two()
        rows = clinic.translate("--format", "mha", "--preview")
        assert {row["status"] for row in rows.values()} == {"translated"}
        first, second = (values(clinic.file(1, each)) for each in ("T1w", "T2w"))
        for target, expected in (("CT", first + second), ("PET", first - second)):
            file = clinic.result(1).with_name(f"sub-01_T1w_{target}.mha")
            found = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(str(file)))
            np.testing.assert_allclose(found.T, expected, atol=1e-3)
            mark = read_mark(file)
            assert mark is not None
            assert mark.target == target
        kept = clinic.translate("--format", "mha", "--preview")
        assert {row["status"] for row in kept.values()} == {"up to date"}

    def test_they_stay_up_to_date_together(self, clinic: Clinic) -> None:
        clinic.makes_two()
        clinic.translate()
        kept = clinic.translate()
        assert {row["status"] for row in kept.values()} == {"up to date"}
        clinic.result(1, "T1w_PET").unlink()
        again = clinic.translate()
        name = NAMES[0].replace("_T1w", "_T1w_CT")
        assert (again[name]["status"], again[name]["due"]) == (
            "translated",
            "a part of its result was deleted",
        )
        assert clinic.result(1, "T1w_PET").exists()

    def test_after_half_of_them_the_next_run_goes_on(
        self, clinic: Clinic, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A kill, or a disk that was full for a moment, leaves such results."""
        clinic.makes_two()
        write, calls = storing.write, list[Path]()

        def failing(volume: Any, target: Path, *others: Any) -> Any:
            calls.append(target)
            if len(calls) == 2:
                raise OSError(28, "No space left on device")
            return write(volume, target, *others)

        with monkeypatch.context() as patch:
            patch.setattr(storing, "write", failing)
            rows = clinic.translate(status=1)
        name = NAMES[0].replace("_T1w", "_T1w_CT")
        assert sorted(row["status"] for row in rows.values()) == ["failed", "translated"]
        [failed] = [row for row in rows.values() if row["status"] == "failed"]
        assert failed["class"] == "write"
        assert calls[0].exists()
        again = clinic.translate()
        assert sorted(row["status"] for row in again.values()) == ["translated", "up to date"]
        assert again[failed["name"]]["due"] == "an earlier run was stopped while writing it"
        assert calls[1].exists()
        assert name in again

    def test_one_that_was_changed_by_somebody_is_kept(self, clinic: Clinic) -> None:
        clinic.makes_two()
        clinic.translate()
        other = clinic.result(1, "T1w_PET")
        other.write_bytes(b"mine")
        rows = clinic.translate(status=1)
        assert rows[NAMES[0].replace("_T1w", "_T1w_CT")]["class"] == "occupied"
        assert other.read_bytes() == b"mine"

    def test_one_that_stands_in_the_way_is_never_replaced_unasked(self, clinic: Clinic) -> None:
        clinic.makes_two()
        other = clinic.result(1, "T1w_PET")
        other.parent.mkdir(parents=True)
        other.write_bytes(b"mine")
        rows = clinic.translate(status=1)
        assert str(other) in rows[NAMES[0].replace("_T1w", "_T1w_CT")]["reason"]
        assert other.read_bytes() == b"mine"
        assert not clinic.result(1, "T1w_CT").exists()

    def test_none_of_them_counts_as_a_scan_later(self, clinic: Clinic) -> None:
        clinic.makes_two()
        clinic.output = clinic.inputs / "results"
        clinic.translate()
        found = clinic.run("discover", str(clinic.inputs), "--json")
        files = json.loads(found.stdout)["files"]
        assert not [file for file in files if "results" in file["path"]]

    def test_a_named_file_cannot_hold_several(self, clinic: Clinic) -> None:
        clinic.makes_two()
        one = str(clinic.file(1, "T1w").parent)
        target = str(clinic.folder / "x.nii.gz")
        done = clinic.run("translate", one, "-m", str(clinic.model), "-o", target)
        assert done.exit_code == 2
        assert "the model makes 2 of a study" in done.stderr

    def test_a_named_file_takes_the_one_of_a_study(self, clinic: Clinic) -> None:
        one, target = str(clinic.file(1, "T1w").parent), clinic.folder / "x.nii.gz"
        done = clinic.run("translate", one, "-m", str(clinic.model), "-o", str(target))
        assert done.exit_code == 0, done.output
        np.testing.assert_allclose(values(target), clinic.expected(1))

    def test_several_results_are_made_of_one_scan(self, clinic: Clinic) -> None:
        mixing_model(clinic.model, ((1,), (2,)), ("T1",), ("CT", "PET"))
        rows = clinic.translate("--channel", "T1=*_T1w")
        assert [*rows] == [name.replace("_T1w", "_T1w_CT") for name in NAMES]
        first = values(clinic.file(1, "T1w"))
        np.testing.assert_allclose(values(clinic.result(1, "T1w_CT")), first)
        np.testing.assert_allclose(values(clinic.result(1, "T1w_PET")), 2 * first)


class TestResume:
    def test_a_second_run_keeps_all(self, clinic: Clinic) -> None:
        clinic.translate()
        assert {row["status"] for row in clinic.translate().values()} == {"up to date"}

    def test_a_changed_channel_makes_its_study_due(self, clinic: Clinic) -> None:
        clinic.translate()
        scan(clinic.file(1, "T2w"), 77)
        rows = clinic.translate()
        assert rows[NAMES[0]]["due"] == "the input changed"
        assert rows[NAMES[1]]["status"] == "up to date"
        np.testing.assert_allclose(values(clinic.result(1)), clinic.expected(1))

    def test_channels_that_change_places_make_it_due(self, clinic: Clinic) -> None:
        clinic.translate()
        first, second = clinic.file(1, "T1w"), clinic.file(1, "T2w")
        first.rename(clinic.folder / "t")
        second.rename(first)
        (clinic.folder / "t").rename(second)
        rows = clinic.translate()
        assert rows[NAMES[0]]["due"] == "the input changed"
        np.testing.assert_allclose(values(clinic.result(1)), clinic.expected(1))


class TestPreviews:
    def test_each_channel_has_a_column(self, clinic: Clinic) -> None:
        clinic.translate("--preview")
        picture = clinic.result(1).with_name(f"{clinic.result(1).name}.preview.png")
        with Image.open(picture) as drawn:
            assert drawn.width == 3 * max(220, drawn.width // 3)
        clinic.makes_two()
        clinic.translate("--preview")
        other = clinic.result(1, "T1w_CT")
        with Image.open(other.with_name(f"{other.name}.preview.png")) as drawn:
            assert drawn.width % 4 == 0
            assert drawn.width > 3 * 300

    def test_one_is_drawn_of_results_that_are_there(self, clinic: Clinic) -> None:
        clinic.makes_two()
        clinic.translate("--preview")
        pictures = sorted(clinic.output.rglob("*.png"))
        drawn = [picture.read_bytes() for picture in pictures]
        for picture in pictures:
            picture.unlink()
        rows = clinic.translate("--preview")
        assert all(row["preview_drawn"] for row in rows.values())
        assert [picture.read_bytes() for picture in pictures] == drawn
