"""Studies of several channels, through every command as one study."""

import json
import os
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from PIL import Image
from support.batch_world import SHAPE, mixing_model, recorded, scan, stored
from support.dicom_phantoms import Phantom
from support.queue_world import QueueWorld
from support.waiting import eventually

from cuda_cyclegan.pipelines.results import storing

nibabel: Any = _nibabel


class Clinic(QueueWorld):
    """Two patients with a T1 and a T2 each, and a model of T1 + 2 T2."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        mixing_model(self.model)
        self.report = folder / "report.json"
        for number in (1, 2):
            scan(self.file(number, "T1w"), 10 * number)
            scan(self.file(number, "T2w"), 10 * number + 1)

    def file(self, number: int, suffix: str) -> Path:
        return self.inputs / f"sub-{number:02}" / f"sub-{number:02}_{suffix}.nii.gz"

    def result(self, number: int, suffix: str = "T1w") -> Path:
        return self.output / self.file(number, suffix).relative_to(self.inputs)

    def rows(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in json.loads(self.report.read_text())["studies"]}

    def translate(self, *options: str, status: int = 0) -> dict[str, dict[str, Any]]:
        """Rows of this run alone."""
        self.report.unlink(missing_ok=True)
        done = self.command("translate", "--report", str(self.report), *options)
        assert done.exit_code == status, done.output
        return self.rows()

    def expected(self, number: int) -> Any:
        first, second = (values(self.file(number, each)) for each in ("T1w", "T2w"))
        return first + 2 * second

    def makes_two(self) -> None:
        """From now on, the model makes the sum and the difference."""
        mixing_model(self.model, ((1, 1), (1, -1)), targets=("CT", "PET"))


def values(file: Path) -> Any:
    return nibabel.load(file).get_fdata()


@pytest.fixture
def clinic(tmp_path: Path) -> Clinic:
    return Clinic(tmp_path)


NAMES = [f"sub-{number:02}/sub-{number:02}_T1w.nii.gz" for number in (1, 2)]


class TestTranslate:
    def test_each_channel_goes_where_the_model_wants_it(self, clinic: Clinic) -> None:
        rows = clinic.translate()
        assert [*rows] == NAMES
        for number in (1, 2):
            np.testing.assert_allclose(values(clinic.result(number)), clinic.expected(number))
            assert not clinic.result(number, "T2w").exists()
        row = rows[NAMES[0]]
        assert row["status"] == "translated"
        assert row["source_content"]["files"] == 2
        assert row["notes"] == [
            "its channels are T1 sub-01/sub-01_T1w.nii.gz, T2 sub-01/sub-01_T2w.nii.gz"
        ]

    def test_the_record_holds_the_files_of_all_channels_in_order(self, clinic: Clinic) -> None:
        clinic.translate()
        inputs = {line["output"]: line["inputs"] for line in recorded(clinic.output)}
        assert [state["name"] for state in inputs[NAMES[0]]] == [
            "sub-01_T1w.nii.gz",
            "sub-01_T2w.nii.gz",
        ]

    def test_a_study_that_lacks_a_channel_fails_alone(self, clinic: Clinic) -> None:
        clinic.file(1, "T2w").unlink()
        rows = clinic.translate(status=1)
        assert (rows[NAMES[0]]["status"], rows[NAMES[0]]["class"]) == ("failed", "unsupported")
        assert "it lacks the channel T2" in rows[NAMES[0]]["reason"]
        assert "setting channel says" in rows[NAMES[0]]["reason"]
        assert rows[NAMES[1]]["status"] == "translated"

    def test_a_damaged_channel_fails_its_study_alone(self, clinic: Clinic) -> None:
        file = clinic.file(1, "T2w")
        file.write_bytes(file.read_bytes()[:-100])
        rows = clinic.translate(status=1)
        assert rows[NAMES[0]]["class"] == "unreadable"
        assert file.name in rows[NAMES[0]]["reason"]
        assert rows[NAMES[1]]["status"] == "translated"

    def test_patterns_say_which_is_which_also_in_a_config_file(
        self, clinic: Clinic, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in (1, 2):
            clinic.file(number, "T1w").rename(clinic.file(number, "mprage"))
        clinic.translate(status=1)
        asked = clinic.translate("--channel", "T1=*_mprage")
        place = clinic.folder / "here"
        place.mkdir()
        monkeypatch.chdir(place)
        (place / "cuda-cyclegan.toml").write_text('[translate]\nchannel = ["T1=*_mprage"]\n')
        kept = clinic.translate()
        assert [row["status"] for row in asked.values()] == ["translated"] * 2
        assert [row["status"] for row in kept.values()] == ["up to date"] * 2
        np.testing.assert_allclose(
            values(clinic.result(1, "mprage")),
            values(clinic.file(1, "mprage")) + 2 * values(clinic.file(1, "T2w")),
        )

    @pytest.mark.parametrize(
        ("asked", "told"),
        [
            (["FLAIR=*"], "The model has no channel FLAIR; its channels are T1, T2."),
            (["T1=*a", "T1=*b"], "The model has each channel but once"),
            (["T1"], "'T1' is no channel's name and pattern"),
            (["=*"], "'=*' is no channel's name and pattern"),
        ],
    )
    def test_patterns_that_say_nothing_are_refused(
        self, clinic: Clinic, asked: list[str], told: str
    ) -> None:
        options = [word for each in asked for word in ("--channel", each)]
        done = clinic.command("translate", *options)
        assert done.exit_code == 2
        assert told in " ".join(done.stderr.replace("│", " ").split())

    def test_verify_and_seam_score_take_all_channels(self, clinic: Clinic) -> None:
        clinic.makes_two()
        asked = ("--inference", "patches", "--verify", "2", "--seam-score", "--patch", "16,16,16")
        rows = clinic.translate(*asked)
        assert all(row["verified"]["error"] < 1e-5 for row in rows.values())
        assert all("seam_score" in row for row in rows.values())

    @pytest.mark.parametrize("command", ["translate", "plan", "submit"])
    def test_a_spread_of_several_results_is_refused(self, clinic: Clinic, command: str) -> None:
        clinic.makes_two()
        done = clinic.command(command, "--spread", "2")
        assert done.exit_code == 2
        assert "the maps of --spread are of one result only so far" in " ".join(done.stderr.split())

    def test_a_spread_of_several_scans_is_of_their_result(self, clinic: Clinic) -> None:
        """This model looks at one voxel at a time, so nothing depends on how patches lie."""
        row = clinic.translate("--spread", "4")[NAMES[0]]
        place = clinic.result(1)
        mean, deviation = (
            values(place.with_name(place.name.replace(".nii", f".map-spread-{what}.nii")))
            for what in ("mean", "sd")
        )
        np.testing.assert_allclose(mean, clinic.expected(1), rtol=1e-5)
        assert not deviation.any()
        assert row["spread"] == {"flips": 4, "deviation": 0.0}

    def test_the_same_scans_under_other_names_are_computed_once(self, clinic: Clinic) -> None:
        for suffix in ("T1w", "T2w"):
            os.link(clinic.file(1, suffix), clinic.inputs / f"again_{suffix}.nii.gz")
        rows = clinic.translate()
        assert sorted(bool(row["tiles"]) for row in rows.values()) == [False, True, True]
        assert clinic.result(1).read_bytes() == (clinic.output / "again_T1w.nii.gz").read_bytes()


class TestGrids:
    def test_those_that_differ_are_refused_with_the_figures(self, clinic: Clinic) -> None:
        scan(clinic.file(1, "T2w"), 3, (20, 18, 12))
        rows = clinic.translate(status=1)
        assert rows[NAMES[0]]["class"] == "preparation"
        assert rows[NAMES[0]]["reason"].startswith(
            "The grids of T2 and T1 differ: 20 x 18 x 12 voxels against 20 x 18 x 16; "
        )
        assert "setting resample-channels" in rows[NAMES[0]]["reason"]
        assert rows[NAMES[1]]["status"] == "translated"

    def test_or_resampled_which_the_row_and_the_record_say(self, clinic: Clinic) -> None:
        clinic.translate()
        scan(clinic.file(1, "T2w"), 3, (20, 18, 12))
        rows = clinic.translate("--resample-channels")
        note = (
            "T2 was resampled onto T1, trilinearly: 20 x 18 x 12 voxels against 20 x 18 x 16; "
            "25.0% of its voxels lie outside and take its lowest value"
        )
        assert note in rows[NAMES[0]]["notes"]
        first, second = values(clinic.file(1, "T1w")), values(clinic.file(1, "T2w"))
        within = values(clinic.result(1))[:, :, :12]
        np.testing.assert_allclose(within, first[:, :, :12] + 2 * second, atol=1e-3)
        settings = {line["recipe"]["settings"] for line in recorded(clinic.output)}
        assert len(settings) == 2
        assert [line["resampled"] for line in recorded(clinic.output) if "resampled" in line] == [
            [note]
        ]
        kept = clinic.translate("--resample-channels")
        assert {row["status"] for row in kept.values()} == {"up to date"}


class TestResults:
    def test_one_file_a_channel(self, clinic: Clinic) -> None:
        clinic.makes_two()
        rows = clinic.translate("--preview")
        assert [*rows] == [name.replace("_T1w", "_T1w_CT") for name in NAMES]
        first, second = (values(clinic.file(1, each)) for each in ("T1w", "T2w"))
        np.testing.assert_allclose(values(clinic.result(1, "T1w_CT")), first + second)
        np.testing.assert_allclose(values(clinic.result(1, "T1w_PET")), first - second)
        row = rows[NAMES[0].replace("_T1w", "_T1w_CT")]
        assert row["output_content"]["files"] == 2
        made = {path.name for path in (clinic.output / "sub-01").iterdir()}
        assert made == {
            "sub-01_T1w_CT.nii.gz",
            "sub-01_T1w_PET.nii.gz",
            "sub-01_T1w_CT.nii.gz.preview.png",
        }

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
        """As after a kill, or on a disk that was full for a moment."""
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

    def test_of_one_scan_several_are_made(self, clinic: Clinic) -> None:
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


class TestOtherCommands:
    def test_plan_tells_one_study_a_row(self, clinic: Clinic) -> None:
        scan(clinic.file(2, "T2w"), 3, (20, 18, 12))
        done = clinic.command("plan")
        assert done.exit_code == 1
        lines = [line for line in done.stdout.splitlines() if line.startswith("sub-0")]
        assert len(lines) == 2
        assert "would fail: sub-02/sub-02_T1w.nii.gz: preparation: The grids of T2" in done.stdout
        assert "2 studies: 1 to translate" in done.stdout

    def test_discover_joins_them_for_a_model(self, clinic: Clinic) -> None:
        clinic.file(2, "T2w").unlink()
        plain = clinic.run("discover", str(clinic.inputs), "--json")
        assert len(json.loads(plain.stdout)["files"]) == 3
        asked = clinic.run("discover", str(clinic.inputs), "-m", str(clinic.model), "--json")
        whole, lacking = json.loads(asked.stdout)["files"]
        assert [channel["name"] for channel in whole["channels"]] == ["T1", "T2"]
        assert (whole["verdict"], lacking["verdict"]) == ("taken", "refused")
        assert "it lacks the channel T2" in lacking["reason"]
        patterned = clinic.run("discover", str(clinic.inputs), "--channel", "T1=a")
        assert patterned.exit_code == 2

    def test_jobs_are_done_as_translate_does_them(self, clinic: Clinic) -> None:
        clinic.makes_two()
        clinic.translate()
        wanted = {path: path.read_bytes() for path in clinic.output.rglob("*.nii.gz")}
        clinic.output = clinic.folder / "by-jobs"
        batch = clinic.submit()
        clinic.work()
        made = {path.relative_to(clinic.output): path for path in clinic.output.rglob("*.nii.gz")}
        assert {path.name for path in made} == {path.name for path in wanted}
        for path, content in wanted.items():
            assert made[path.relative_to(clinic.folder / "out")].read_bytes() == content
        assert [job["state"] for job in clinic.jobs(batch)] == ["done"] * 2

    def test_a_job_whose_names_tell_nothing_knows_its_channels(self, clinic: Clinic) -> None:
        """As the files of a job stand in the model's order."""
        for number in (1, 2):
            clinic.file(number, "T1w").rename(clinic.file(number, "z-mprage"))
        clinic.submit("--channel", "T1=*_z-mprage")
        clinic.work()
        first, second = (values(clinic.file(1, each)) for each in ("z-mprage", "T2w"))
        np.testing.assert_allclose(values(clinic.result(1, "z-mprage")), first + 2 * second)

    def test_what_lacks_a_channel_is_not_queued_until_it_is_there(self, clinic: Clinic) -> None:
        late = clinic.file(1, "T2w")
        content = late.read_bytes()
        late.unlink()
        paths = [str(clinic.inputs), "-m", str(clinic.model), "-o", str(clinic.output)]
        done = clinic.run("submit", *paths)
        assert done.exit_code == 1
        assert "is not queued: it lacks the channel T2" in done.stderr
        assert "--channel says which are" in " ".join(done.stderr.split())
        late.write_bytes(content)
        clinic.submit()
        clinic.work()
        np.testing.assert_allclose(values(clinic.result(1)), clinic.expected(1))

    def test_a_watched_study_is_taken_when_its_last_channel_came(self, clinic: Clinic) -> None:
        late = clinic.file(2, "T2w")
        content = late.read_bytes()
        late.unlink()
        paths = ["--model", str(clinic.model), "--output", str(clinic.output), "--settle", "0.5"]
        watch = clinic.start("watch", str(clinic.inputs), *paths)
        eventually(lambda: clinic.run("jobs").stdout.count(" 1 ") == 1)
        late.write_bytes(content)
        eventually(lambda: len(clinic.did("jobs").splitlines()) == 5)
        watch.terminate()
        _, log = watch.communicate()
        assert log.count("1 study queued") == 2
        clinic.work()
        np.testing.assert_allclose(values(clinic.result(2)), clinic.expected(2))


class TestDicom:
    def ward(self, clinic: Clinic) -> None:
        """A T1 and a T2 of one frame of reference, and another T2 that belongs to none."""
        for number, text in ((1, "T1"), (2, "ax T2"), (3, "T2")):

            def named(data: Any, _: int, text: str = text, number: int = number) -> None:
                data.SeriesDescription = text
                if number == 3:
                    data.FrameOfReferenceUID = "1.2.9"

            phantom = Phantom("MR", number=number, series=f"1.2.3.{number}", seed=number)
            phantom.write(clinic.inputs / f"s{number}", named)

    def test_a_series_of_results_for_each_channel(self, tmp_path: Path) -> None:
        clinic = Clinic(tmp_path)
        for number in (1, 2):
            for suffix in ("T1w", "T2w"):
                clinic.file(number, suffix).unlink()
        self.ward(clinic)
        clinic.makes_two()
        rows = clinic.translate(status=1)
        names = sorted(rows)
        assert [rows[name]["status"] for name in names] == ["translated", "failed"]
        assert "it lacks the channel T1" in rows[names[1]]["reason"]
        from support.dicom_phantoms import pydicom

        files = sorted(clinic.output.rglob("*.dcm"))
        found = [pydicom.dcmread(file) for file in files]
        assert {file.parent.name.rpartition("_")[2] for file in files} == {"CT", "PET"}
        uids = {each.SeriesInstanceUID for each in found}
        assert len(uids) == 2
        assert len({each.SOPInstanceUID for each in found}) == len(files) == 24
        told = {each.SeriesDescription.partition(" (")[0] for each in found}
        assert told == {"Synthetic CT", "Synthetic PET"}
        assert {each.FrameOfReferenceUID for each in found} == {"1.2.3.4.5.9"}
        for each in found:
            referred = [item.ReferencedSOPInstanceUID for item in each.SourceImageSequence]
            assert referred == [f"1.2.3.{number}.{each.InstanceNumber}" for number in (1, 2)]
        kept = clinic.translate(status=1)
        assert kept[names[0]]["status"] == "up to date"

    def test_discover_tells_of_each_series_what_becomes_of_it(self, tmp_path: Path) -> None:
        clinic = Clinic(tmp_path)
        for number in (1, 2):
            for suffix in ("T1w", "T2w"):
                clinic.file(number, suffix).unlink()
        self.ward(clinic)
        Phantom("MR", number=4, series="1.2.3.4").write(clinic.inputs / "s4")
        done = clinic.run("discover", str(clinic.inputs), "-m", str(clinic.model), "--json")
        told = {each["number"]: each for each in json.loads(done.stdout)["series"]}
        verdicts = {number: each["verdict"] for number, each in told.items()}
        assert verdicts == {1: "taken", 2: "taken", 3: "refused", 4: "skipped"}
        assert "it lacks the channel T1" in told[3]["reason"]
        assert "nothing tells it as T1 or T2" in told[4]["reason"]
        shown = clinic.run("discover", str(clinic.inputs), "-m", str(clinic.model))
        assert "Found: 1 to translate, 1 refused, 1 skipped" in shown.stdout

    def test_jobs_of_series(self, tmp_path: Path) -> None:
        clinic = Clinic(tmp_path)
        for number in (1, 2):
            for suffix in ("T1w", "T2w"):
                clinic.file(number, suffix).unlink()
        self.ward(clinic)
        clinic.translate("--format", "nifti", status=1)
        [wanted] = clinic.output.rglob("*.nii.gz")
        content = wanted.read_bytes()
        clinic.output = clinic.folder / "by-jobs"
        paths = [str(clinic.inputs), "-m", str(clinic.model), "-o", str(clinic.output)]
        assert clinic.run("submit", *paths, "--format", "nifti").exit_code == 1
        clinic.work()
        [made] = clinic.output.rglob("*.nii.gz")
        assert made.read_bytes() == content


def test_nan_is_taken_in_every_channel(clinic: Clinic) -> None:
    voxels = np.random.default_rng(0).normal(500, 100, SHAPE).astype(np.float32)
    voxels[0, 0, :3] = np.nan
    stored(clinic.file(1, "T2w"), voxels)
    rows = clinic.translate("--nan-to", "0")
    assert any(note.startswith("T2: 3 of") for note in rows[NAMES[0]]["notes"])
