"""Studies of several channels, through every command as one study."""

import json
import os
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from support.batch_world import SHAPE, recorded, scan, stored
from support.clinic import NAMES, Clinic, values
from support.waiting import eventually

nibabel: Any = _nibabel


@pytest.fixture
def clinic(tmp_path: Path) -> Clinic:
    return Clinic(tmp_path)


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
        assert "channel T2 is missing" in rows[NAMES[0]]["reason"]
        assert "use setting channel" in rows[NAMES[0]]["reason"]
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
        ("asked", "reported"),
        [
            (["FLAIR=*"], "The model has no channel FLAIR; its channels are T1, T2."),
            (["T1=*a", "T1=*b"], "The model has each channel only once"),
            (["T1"], "'T1' is not a channel name and pattern"),
            (["=*"], "'=*' is not a channel name and pattern"),
        ],
    )
    def test_patterns_that_say_nothing_are_refused(
        self, clinic: Clinic, asked: list[str], reported: str
    ) -> None:
        options = [word for each in asked for word in ("--channel", each)]
        done = clinic.command("translate", *options)
        assert done.exit_code == 2
        assert reported in " ".join(done.stderr.replace("│", " ").split())

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
        assert "but --spread supports only one" in " ".join(done.stderr.split())

    def test_a_spread_of_several_scans_is_of_their_result(self, clinic: Clinic) -> None:
        """The model looks at one voxel at a time, so nothing depends on how patches lie."""
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
            "25.0% of its voxels are outside and get its lowest value"
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


class TestOtherCommands:
    def test_plan_shows_one_study_a_row(self, clinic: Clinic) -> None:
        scan(clinic.file(2, "T2w"), 3, (20, 18, 12))
        done = clinic.command("plan", "--strict")
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
        assert "channel T2 is missing" in lacking["reason"]
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

    def test_a_job_whose_names_show_nothing_knows_its_channels(self, clinic: Clinic) -> None:
        """The files of a job are in the model's order."""
        for number in (1, 2):
            clinic.file(number, "T1w").rename(clinic.file(number, "z-mprage"))
        clinic.submit("--channel", "T1=*_z-mprage")
        clinic.work()
        first, second = (values(clinic.file(1, each)) for each in ("z-mprage", "T2w"))
        np.testing.assert_allclose(values(clinic.result(1, "z-mprage")), first + 2 * second)

    def test_study_without_a_channel_is_not_queued_until_it_is_there(self, clinic: Clinic) -> None:
        late = clinic.file(1, "T2w")
        content = late.read_bytes()
        late.unlink()
        paths = [str(clinic.inputs), "-m", str(clinic.model), "-o", str(clinic.output)]
        done = clinic.run("submit", *paths)
        assert done.exit_code == 1
        assert "is not queued: channel T2 is missing" in done.stderr
        assert "use --channel to assign scans" in " ".join(done.stderr.split())
        late.write_bytes(content)
        clinic.submit()
        clinic.work()
        np.testing.assert_allclose(values(clinic.result(1)), clinic.expected(1))

    @pytest.mark.slow
    def test_a_watched_study_is_taken_when_its_last_channel_came(self, clinic: Clinic) -> None:
        late = clinic.file(2, "T2w")
        content = late.read_bytes()
        late.unlink()
        paths = ["--model", str(clinic.model), "--output", str(clinic.output), "--settle", "0.5"]
        watch = clinic.start("watch", str(clinic.inputs), *paths)
        eventually(lambda: clinic.run("jobs").stdout.count(" 1 ") == 1)
        late.write_bytes(content)
        eventually(lambda: " 2 " in clinic.did("jobs"), evidence=lambda: clinic.did("jobs"))
        watch.terminate()
        _, log = watch.communicate()
        assert log.count("1 study queued") == 2
        clinic.work()
        np.testing.assert_allclose(values(clinic.result(2)), clinic.expected(2))


def test_nan_is_taken_in_every_channel(clinic: Clinic) -> None:
    voxels = np.random.default_rng(0).normal(500, 100, SHAPE).astype(np.float32)
    voxels[0, 0, :3] = np.nan
    stored(clinic.file(1, "T2w"), voxels)
    rows = clinic.translate("--nan-to", "0")
    assert any(note.startswith("T2: 3 of") for note in rows[NAMES[0]]["notes"])
