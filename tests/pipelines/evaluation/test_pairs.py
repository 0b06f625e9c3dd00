"""Pairing of results and truths: by mirrored names, DICOM identifiers or a table."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.batch_world import scan
from support.dicom_phantoms import Phantom

from cuda_cyclegan.io.errors import ScanError
from cuda_cyclegan.pipelines.errors import PairsFileError
from cuda_cyclegan.pipelines.evaluation.pairs import ScanPair, Sources, find_pairs

MR = Phantom("MR", number=4, series="1.2.3.4.5.7", intercept=0.0)
CT = Phantom(number=5, series="1.2.3.4.5.8")


@pytest.fixture
def folders(tmp_path: Path) -> Sources:
    for name in ("results", "truth", "masks"):
        (tmp_path / name).mkdir()
    return Sources(tmp_path / "results", tmp_path / "truth")


def fill(folder: Path, *names: str) -> None:
    for name in names:
        scan(folder / name)


def named(pair: ScanPair) -> tuple[str, ...]:
    studies = pair.result, pair.truth, pair.mask
    return tuple(str(study.name) if study else "" for study in studies)


def found(sources: Sources) -> dict[tuple[str, ...], str | None]:
    return {named(pair): pair.missing for pair in find_pairs(sources).pairs}


def test_names_mirror_each_other_whatever_the_format_is(folders: Sources) -> None:
    fill(folders.results, "ward/a.nii.gz", "ward/b.nii.gz", "c.nii")
    fill(folders.truth, "ward/a.nii.gz", "ward/b.nii", "c.nii.gz", "c.nii")
    assert found(folders) == {
        ("ward/a.nii.gz", "ward/a.nii.gz", ""): None,
        ("ward/b.nii.gz", "ward/b.nii", ""): None,
        ("c.nii", "c.nii", ""): None,
        ("", "c.nii.gz", ""): "no result matches it",
    }


def test_file_without_a_partner_has_a_row(folders: Sources) -> None:
    fill(folders.results, "a.nii", "alone.nii", "twice.nii", "bare.nii")
    fill(folders.truth, "a.nii", "left.nii", "twice.nii.gz", "bare.nii")
    fill(folders.truth.parent / "masks", "a.nii")
    (folders.truth / "twice.nrrd").touch()
    rows = found(replace(folders, masks=folders.truth.parent / "masks"))
    assert rows == {
        ("a.nii", "a.nii", "a.nii"): None,
        ("alone.nii", "", ""): "no ground truth matches it",
        ("bare.nii", "bare.nii", ""): "no mask matches it",
        ("", "left.nii", ""): "no result matches it",
        ("twice.nii", "", ""): (
            "2 truths fit it, twice.nii.gz, twice.nrrd; name one with setting pairs"
        ),
    }


def test_a_mask_may_be_named_after_the_truth(folders: Sources) -> None:
    fill(folders.results, "a.nii")
    MR.write(folders.truth / "dicom")
    fill(folders.truth.parent / "masks", "a.nii.gz")
    sources = replace(folders, masks=folders.truth.parent / "masks")
    assert ("a.nii", "", "") in found(sources)
    fill(folders.truth, "a.nii")
    assert found(sources)["a.nii", "a.nii", "a.nii.gz"] is None


def test_dicom_belongs_together_by_study_and_frame_of_reference(folders: Sources) -> None:
    MR.write(folders.results / "patient" / "mr")
    CT.write(folders.truth / "elsewhere")
    replace(CT, study="9.9.9", series="9.9.9.1").write(folders.truth / "other")
    rows = find_pairs(folders).pairs
    [whole] = [pair for pair in rows if not pair.missing]
    assert whole.result
    assert whole.truth
    assert whole.truth.files[0].parent.name == "elsewhere"
    assert [pair.missing for pair in rows if pair.missing] == ["no result matches it"]


def test_two_truths_in_one_frame_are_not_chosen_from(folders: Sources) -> None:
    MR.write(folders.results / "mr")
    CT.write(folders.truth / "one")
    replace(CT, number=6, series="1.2.3.4.5.9").write(folders.truth / "two")
    [pair] = find_pairs(folders).pairs
    assert pair.missing
    assert "2 truths fit it" in pair.missing
    (folders.truth.parent / "pairs.csv").write_text("result,truth\nmr,two\n")
    [pair] = find_pairs(replace(folders, table=folders.truth.parent / "pairs.csv")).pairs
    assert pair.missing is None
    assert pair.truth
    assert pair.truth.files[0].parent.name == "two"


def test_a_result_among_the_truth_is_one_by_its_name_alone(folders: Sources) -> None:
    def ours(data: Any, _: int) -> None:
        data.Manufacturer = "cuda-cyclegan"

    MR.write(folders.results / "mr", ours)
    CT.write(folders.truth / "ct")
    replace(CT, number=6, series="1.2.3.4.5.9").write(folders.truth / "synthetic", ours)
    [pair] = find_pairs(folders).pairs
    assert pair.truth
    assert pair.truth.files[0].parent.name == "ct"
    replace(MR, seed=1).write(folders.truth / "mr", ours)
    [rest, pair] = find_pairs(folders).pairs
    assert pair.truth
    assert pair.truth.files[0].parent.name == "mr"
    assert rest.missing == "no result matches it"


def test_a_table_says_what_belongs_together(folders: Sources) -> None:
    fill(folders.results, "p1/mr.nii", "p2/mr.nii", "unlisted.nii")
    fill(folders.truth, "p1/ct.nii", "p1/mask.nii", "p1/mr.nii", "p2/ct.nii")
    table = folders.truth.parent / "pairs.csv"
    table.write_text(
        "\ufefftruth,result,mask\r\n"
        f"p1/ct.nii,{folders.results}/p1/mr.nii,p1/mask.nii\r\n"
        "p2/ct.nii,p2/mr.nii,\r\n"
        '"p3/a, b.nii",p3/mr.nii,p1/mask.nii\r\n',
        "utf-8",
    )
    assert found(replace(folders, masks=folders.truth, table=table)) == {
        ("p1/mr.nii", "p1/ct.nii", "p1/mask.nii"): None,
        ("p2/mr.nii", "p2/ct.nii", ""): "no mask matches it",
        ("", "", "p1/mask.nii"): (
            "p3/mr.nii is no result that was found; p3/a, b.nii is no truth that was found"
        ),
    }


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        (b"", "must begin with a line of its columns"),
        (b"result;truth\na.nii;a.nii\n", "must begin with a line of its columns"),
        (b"result,truth,extra\n", "must begin with a line of its columns"),
        (b"result,truth\na.nii\n", "Line 2 of .* has not 2 values"),
        (b"result,truth\na.nii,a.nii,b.nii\n", "Line 2 of .* has not 2 values"),
        (b"result,truth\na.nii,a.nii\na.nii,b.nii\n", "names a.nii twice"),
        (b"result,truth\n\xff,a.nii\n", "not a CSV file in UTF-8"),
    ],
)
def test_a_table_that_is_none_is_refused(folders: Sources, content: bytes, reported: str) -> None:
    fill(folders.results, "a.nii")
    fill(folders.truth, "a.nii", "b.nii")
    table = folders.truth.parent / "pairs.csv"
    table.write_bytes(content)
    with pytest.raises(PairsFileError, match=reported):
        find_pairs(replace(folders, table=table))


def test_two_files_belong_together_whatever_they_are_called(folders: Sources) -> None:
    fill(folders.results, "made.nii.gz")
    fill(folders.truth, "ct.nii", "other.nii", "mask.nii")
    files = Sources(folders.results / "made.nii.gz", folders.truth / "ct.nii")
    assert found(files) == {("made.nii.gz", "ct.nii", ""): None}
    masked = replace(files, masks=folders.truth / "mask.nii")
    assert found(masked) == {("made.nii.gz", "ct.nii", "mask.nii"): None}


def test_a_folder_that_is_missing_is_reported(folders: Sources) -> None:
    with pytest.raises(ScanError, match="does not exist"):
        find_pairs(replace(folders, truth=folders.truth / "missing"))


def test_unreadable_folder_is_reported(folders: Sources) -> None:
    fill(folders.results, "a.nii")
    fill(folders.truth, "a.nii")
    (folders.truth / "link.nii").symlink_to(folders.results.parent)
    outside = folders.truth.parent / "outside.nii"
    scan(outside)
    (folders.truth / "out.nii").symlink_to(outside)
    assert [skip.path.name for skip in find_pairs(folders).skipped] == ["link.nii", "out.nii"]
