"""Scans that form one study of several channels: never those of two patients, and each reported."""

from pathlib import Path
from typing import Any

import pytest
from support.dicom_phantoms import Phantom

from cuda_cyclegan.io.channels import ChannelName, in_channels, other_results
from cuda_cyclegan.io.choice import EVERYTHING, Choice
from cuda_cyclegan.io.discovery import Discovery, discover


def lay(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return folder


def found(
    folder: Path,
    *channels: str,
    results: tuple[str, ...] = ("CT",),
    choice: Choice = EVERYTHING,
    **patterns: str,
) -> Discovery:
    names = channels or ("T1", "T2")
    asked = [ChannelName(name, patterns.get(name, "")) for name in names]
    return in_channels(discover([folder], None, choice), asked, results)


def pairs(of: Discovery) -> dict[str, list[str]]:
    """Names of files by that of the study; those that cannot be translated have none."""
    return {
        str(study.name): [] if study.blocker else [file.name for file in study.files]
        for study in of.studies
    }


def blockers(of: Discovery) -> dict[str, str]:
    return {str(study.name): study.blocker.reason for study in of.studies if study.blocker}


class TestSuffixes:
    def test_as_in_bids(self, tmp_path: Path) -> None:
        for name in ("sub-01", "sub-02"):
            lay(tmp_path / name / "anat", f"{name}_T2w.nii.gz", f"{name}_T1w.nii.gz")
        assert pairs(found(tmp_path)) == {
            f"{name}/anat/{name}_T1w.nii.gz": [f"{name}_T1w.nii.gz", f"{name}_T2w.nii.gz"]
            for name in ("sub-01", "sub-02")
        }

    def test_the_order_is_the_models(self, tmp_path: Path) -> None:
        lay(tmp_path, "a_T1w.nii", "a_T2w.nii", "a_FLAIR.nii")
        both = found(tmp_path, "FLAIR", "T2", "T1")
        assert pairs(both) == {"a_FLAIR.nii": ["a_FLAIR.nii", "a_T2w.nii", "a_T1w.nii"]}
        [study] = both.studies
        assert [scan.channel for scan in study.scans] == ["FLAIR", "T2", "T1"]
        assert study.notes == ("its channels are FLAIR a_FLAIR.nii, T2 a_T2w.nii, T1 a_T1w.nii",)

    @pytest.mark.parametrize("word", ["T1", "t1", "T1w", "t1W"])
    def test_any_case_and_with_or_without_w(self, tmp_path: Path, word: str) -> None:
        lay(tmp_path, f"a_{word}.nii", "a_T2w.nii")
        assert pairs(found(tmp_path)) == {f"a_{word}.nii": [f"a_{word}.nii", "a_T2w.nii"]}

    def test_a_name_alone_is_a_suffix_too(self, tmp_path: Path) -> None:
        lay(tmp_path, "p/T1.nii", "p/T2.nii", "q/T1.nii", "q/T2.nii")
        assert pairs(found(tmp_path)) == {
            "p/T1.nii": ["T1.nii", "T2.nii"],
            "q/T1.nii": ["T1.nii", "T2.nii"],
        }

    def test_other_scans_are_skipped_and_reported(self, tmp_path: Path) -> None:
        lay(tmp_path, "a_T1w.nii", "a_T2w.nii", "a_T1ce.nii", "a_ct.nii")
        of = found(tmp_path)
        assert len(of.studies) == 1
        reported = "not recognised as channel T1 or T2; use setting channel to assign scans"
        assert {row.path.name: (row.reason, row.missed) for row in of.skipped} == {
            "a_T1ce.nii": (reported, False),
            "a_ct.nii": (reported, False),
        }

    def test_scans_of_two_patients_never_meet(self, tmp_path: Path) -> None:
        lay(tmp_path, "a_T1w.nii", "b_T2w.nii", "c/a_T2w.nii")
        of = found(tmp_path)
        assert pairs(of) == {"a_T1w.nii": [], "b_T2w.nii": [], "c/a_T2w.nii": []}
        assert blockers(of)["a_T1w.nii"] == (
            "channel T2 is missing: no scan next to it is named ..._T2; use setting channel to "
            "assign scans"
        )
        assert blockers(of)["b_T2w.nii"].startswith("channel T1 is missing: ")

    def test_two_of_one_kind_are_refused_alone(self, tmp_path: Path) -> None:
        lay(tmp_path, "a_T1w.nii", "a_T1w.nrrd", "a_T2w.nii", "b_T1w.nii", "b_T2w.nii")
        of = found(tmp_path)
        assert pairs(of)["b_T1w.nii"] == ["b_T1w.nii", "b_T2w.nii"]
        assert blockers(of) == {
            "a_T1w.nii": "2 scans are its T1: a_T1w.nii, a_T1w.nrrd; use setting channel to "
            "distinguish them"
        }


class TestPatterns:
    def test_match_of_a_star_is_the_patient(self, tmp_path: Path) -> None:
        lay(tmp_path, *(f"{case}_000{at}.nii.gz" for case in "ab" for at in (0, 1)))
        assert pairs(found(tmp_path, T1="*_0000", T2="*_0001.nii.gz")) == {
            f"{case}_0000.nii.gz": [f"{case}_0000.nii.gz", f"{case}_0001.nii.gz"] for case in "ab"
        }

    def test_two_stars_stand_for_anything_in_a_folder_of_one_patient(self, tmp_path: Path) -> None:
        lay(tmp_path, "p/4_mprage_sag.nii", "p/7_t2_tse.nii", "q/2_mprage.nii", "q/3_t2.nii")
        patterns = {"T1": "**mprage**", "T2": "**t2**"}
        assert pairs(found(tmp_path, **patterns)) == {
            "p/4_mprage_sag.nii": ["4_mprage_sag.nii", "7_t2_tse.nii"],
            "q/2_mprage.nii": ["2_mprage.nii", "3_t2.nii"],
        }
        lay(tmp_path, "q/5_t2.nii")
        assert "2 scans are its T2: q/3_t2.nii, q/5_t2.nii" in str(
            blockers(found(tmp_path, **patterns))
        )

    def test_one_star_does_not_bring_two_patients_together(self, tmp_path: Path) -> None:
        lay(tmp_path, "a-T1.nii", "b-T2.nii")
        of = found(tmp_path, T1="*-T1", T2="*-T2")
        assert (
            "no scan next to it is named *-T2, with the same text for each *"
            in (blockers(of)["a-T1.nii"])
        )

    def test_folders_of_contrasts(self, tmp_path: Path) -> None:
        lay(tmp_path, *(f"day/{kind}/{case}.nii" for kind in ("T1", "T2") for case in "ab"))
        assert pairs(found(tmp_path, T1="T1/*", T2="T2/*")) == {
            "day/T1/a.nii": ["a.nii", "a.nii"],
            "day/T1/b.nii": ["b.nii", "b.nii"],
        }

    def test_files_of_two_formats_are_one_study(self, tmp_path: Path) -> None:
        lay(tmp_path, "T1/a.nii.gz", "T2/a.mha")
        of = found(tmp_path, T1="T1/*", T2="T2/*")
        assert pairs(of) == {"T1/a.nii.gz": ["a.nii.gz", "a.mha"]}

    def test_one_channel_may_have_a_pattern_and_the_other_its_suffix(self, tmp_path: Path) -> None:
        lay(tmp_path, "a_mprage.nii", "a_T2w.nii")
        assert pairs(found(tmp_path, T1="*_mprage")) == {
            "a_mprage.nii": ["a_mprage.nii", "a_T2w.nii"]
        }

    def test_a_scan_of_two_channels_is_refused(self, tmp_path: Path) -> None:
        lay(tmp_path, "a_T1_T2.nii", "b_T1.nii", "b_T2.nii")
        of = found(tmp_path, T1="*_T1**", T2="*_**T2")
        assert blockers(of)["a_T1_T2.nii"] == (
            "recognised as both T1 and T2; use setting channel to distinguish them"
        )
        assert pairs(of)["b_T1.nii"] == ["b_T1.nii", "b_T2.nii"]

    def test_all_else_in_a_pattern_means_itself(self, tmp_path: Path) -> None:
        lay(tmp_path, "a.T1.nii", "axT1.nii", "a.T2.nii")
        of = found(tmp_path, T1="*.T1", T2="*.T2")
        assert pairs(of) == {"a.T1.nii": ["a.T1.nii", "a.T2.nii"]}

    def test_for_a_model_of_one_channel_it_picks_scans(self, tmp_path: Path) -> None:
        lay(tmp_path, "a_T1w.nii", "a_T2w.nii")
        assert pairs(found(tmp_path, "T1")) == {
            "a_T1w.nii": ["a_T1w.nii"],
            "a_T2w.nii": ["a_T2w.nii"],
        }
        picked = found(tmp_path, "T1", T1="*_T1w")
        assert pairs(picked) == {"a_T1w.nii": ["a_T1w.nii"]}
        [study] = picked.studies
        assert (study.scans, study.notes) == ((), ())


class TestResults:
    def test_several_stand_beside_each_other(self, tmp_path: Path) -> None:
        lay(tmp_path, "p/a_T1w.nii.gz", "p/a_T2w.nii.gz")
        [study] = found(tmp_path, results=("CT", "PET / FDG", "ct", "..")).studies
        assert [*map(str, study.results)] == [
            f"p/a_T1w_{word}.nii.gz" for word in ("CT", "PET-FDG", "ct3", "channel-4")
        ]
        assert other_results(study.name, ("CT", "PET / FDG", "ct", "..")) == study.other_results

    def test_study_of_one_scan_has_several_results(self, tmp_path: Path) -> None:
        lay(tmp_path, "a.v2.mha")
        [study] = found(tmp_path, "T1", results=("CT", "PET")).studies
        assert [*map(str, study.results)] == ["a.v2_CT.mha", "a.v2_PET.mha"]
        assert study.scans == ()

    def test_one_is_named_as_ever(self, tmp_path: Path) -> None:
        lay(tmp_path, "a.nii")
        [study] = found(tmp_path, "T1").studies
        [plain] = discover([tmp_path], None).studies
        assert study == plain


class Ward:
    """Series of DICOM in a folder each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def series(
        self, number: int, description: str, modality: str = "MR", edit: Any = None, **how: Any
    ) -> None:
        def named(data: Any, _: int) -> None:
            data.SeriesDescription = description
            if edit:
                edit(data)

        phantom = Phantom(modality, number=number, series=f"1.2.3.{number}", **how)
        phantom.write(self.folder / f"s{number}", named)

    def found(self, *channels: str, **patterns: str) -> Discovery:
        return found(self.folder, *channels, **patterns)

    def pairs(self, *channels: str, **patterns: str) -> list[tuple[list[int], bool]]:
        """Numbers of the series of each study, and whether it can be translated."""
        return [
            ([scan.series.number for scan in study.channels], study.blocker is None)  # type: ignore[attr-defined]
            for study in self.found(*channels, **patterns).studies
        ]


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    return Ward(tmp_path)


class TestSeries:
    def test_a_word_of_the_description_shows(self, ward: Ward) -> None:
        ward.series(1, "ax T2 tse")
        ward.series(2, "sag-t1w mprage")
        ward.series(3, "T1ce")
        assert ward.pairs() == [([2, 1], True)]
        assert len(ward.found().skipped) == 1

    def test_the_modality_shows_a_ct(self, ward: Ward) -> None:
        ward.series(1, "head", "CT")
        ward.series(2, "T1")
        assert ward.pairs("CT", "T1") == [([1, 2], True)]

    def test_patterns_are_held_against_description_and_label(self, ward: Ward) -> None:
        ward.series(1, "MPRAGE sag")
        ward.series(2, "plain")
        assert ward.pairs(T1="mprage**", T2="series-0002-*") == [([1, 2], True)]

    @pytest.mark.parametrize("apart", ["study", "reference", "patient"])
    def test_series_of_another_space_or_patient_never_meet(self, ward: Ward, apart: str) -> None:
        def moved(data: Any) -> None:
            if apart == "study":
                data.StudyInstanceUID = "1.2.9"
            elif apart == "reference":
                data.FrameOfReferenceUID = "1.2.9"
            else:
                data.PatientID = "another"

        ward.series(1, "T1")
        ward.series(2, "T2", edit=moved)
        assert ward.pairs() == [([1], False), ([2], False)]
        reasons = blockers(ward.found()).values()
        assert all("no other series of its study and frame of reference is" in r for r in reasons)

    def test_series_that_show_no_space_are_refused(self, ward: Ward) -> None:
        def placeless(data: Any) -> None:
            del data.FrameOfReferenceUID

        ward.series(1, "T1", edit=placeless)
        ward.series(2, "T2", edit=placeless)
        assert ward.pairs() == [([1, 2], False)]
        assert "it is unclear whether they share one space" in str(blockers(ward.found()))

    def test_two_of_one_kind_are_refused_until_told_apart(self, ward: Ward) -> None:
        ward.series(1, "T1")
        ward.series(2, "T1 post")
        ward.series(3, "T2")
        assert ward.pairs() == [([1, 3], False)]
        assert ward.pairs(T1="T1") == [([1, 3], True)]

    def test_reports_name_no_patient(self, ward: Ward) -> None:
        ward.series(1, "T1 of Jane")
        of = ward.found()
        assert "Jane" not in str(blockers(of)) + str([row.reason for row in of.skipped])

    def test_a_damaged_scan_refuses_its_study(self, ward: Ward) -> None:
        ward.series(1, "T1")
        ward.series(2, "T2")
        ward.series(3, "T1", study="1.2.8")
        ward.series(4, "T2", study="1.2.8")
        files = sorted((ward.folder / "s2").iterdir())
        for file in files[-3:]:
            file.write_bytes(file.read_bytes()[:-100])
        assert ward.pairs() == [([1, 2], False), ([3, 4], True)]
        assert "T2: " in str(blockers(ward.found()))
