"""Studies whose results would share a place: all are refused, whatever their order and number."""

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batch_world import scan
from support.translate_world import World

import cuda_cyclegan as cc
from cuda_cyclegan.io.channels import with_results
from cuda_cyclegan.io.discovery import Discovery, in_format
from cuda_cyclegan.io.formats.registry import SUFFIXES, suffix_of
from cuda_cyclegan.io.volume import Blocker, Study
from cuda_cyclegan.pipelines.results import names
from cuda_cyclegan.pipelines.results.names import rivals_refused
from cuda_cyclegan.pipelines.study.maps import spread_marks

ROOT = Path("/in")
MISSING = "results"


def study(source: str, name: str = "", blocker: Blocker | None = None) -> Study:
    """A scan at a place below the inputs; one with a name besides is a DICOM series."""
    if name:
        return Study(PurePosixPath(name), (ROOT / source,), "dicom", blocker=blocker)
    kind = SUFFIXES[suffix_of(Path(source))]
    return Study(PurePosixPath(source), (ROOT / source,), kind, blocker=blocker)


def refused(studies: Sequence[Study], *, preview: bool = False, maps: bool = False) -> Discovery:
    marks = spread_marks(2) if maps else ()
    found = Discovery(tuple(sorted(studies, key=lambda each: each.name)), (), root=ROOT)
    with tempfile.TemporaryDirectory() as folder:
        return rivals_refused(found, Path(folder) / MISSING, marks, preview=preview)


def blockers(found: Discovery) -> dict[str, str]:
    return {str(study.name): study.blocker.reason for study in found.studies if study.blocker}


def overwriting(others: str) -> str:
    return f"its result would overwrite that of {others}; move one away"


@pytest.mark.parametrize(
    ("sources", "kept"),
    [
        (["a.nii", "a.nii.gz", "a.nrrd", "a.mha", "a.hdr"], 5),
        (["a.hdr", "a.hdr.gz"], 2),
        (["a.mhd", "a.nhdr"], 0),
        (["a.mhd", "b.nhdr"], 2),
        (["a.nii", "A.nii", "a.NII"], 3),
        (["e\N{COMBINING ACUTE ACCENT}.nii", "\N{LATIN SMALL LETTER E WITH ACUTE}.nii"], 0),
    ],
)
def test_no_result_takes_the_place_of_another(sources: Sequence[str], kept: int) -> None:
    for order in itertools.permutations(sources):
        found = refused([study(source) for source in order])
        assert len(found.studies) - len(blockers(found)) == kept
        assert [str(each.name) for each in found.studies] == sorted(sources)


def test_all_rivals_are_named_to_each() -> None:
    sources = ["a.mha", "a.nii.gz", "a.nrrd", "b.mha", "sub/a.mha"]
    for order in itertools.permutations(sources):
        found = refused(in_format(map(study, order), "nifti"))
        assert blockers(found) == {
            "a.mha": overwriting("a.nii.gz, a.nrrd"),
            "a.nii.gz": overwriting("a.mha, a.nrrd"),
            "a.nrrd": overwriting("a.mha, a.nii.gz"),
        }
        names = [str(each.name) for each in found.studies]
        assert names == ["a.mha", "a.nii.gz", "a.nrrd", "b.nii.gz", "sub/a.nii.gz"]
    more = ("a.nhdr", "a.mhd", "a.NRRD")
    many = refused(in_format(map(study, (*sources, *more)), "nifti"))
    assert blockers(many)["a.mha"] == overwriting("a.NRRD, a.mhd, a.nhdr and 2 more")


def test_a_disk_that_ignores_case_holds_one_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    studies = [study("A.nii"), study("a.nii"), study("b.nii")]
    assert not blockers(refused(studies))
    monkeypatch.setattr(names, "_ignores_case", lambda output: output.name == MISSING)
    reported = " (their names differ only in case or in Unicode normalisation)"
    assert blockers(refused(studies)) == {
        "A.nii": overwriting(f"a.nii{reported}"),
        "a.nii": overwriting(f"A.nii{reported}"),
    }


def test_a_result_and_a_folder_in_its_place_are_rivals() -> None:
    inside = study("a.nii.gz/b.nii")
    found = refused(in_format([study("a.mha"), inside], "nifti"))
    assert blockers(found) == {
        "a.mha": overwriting("a.nii.gz/b.nii"),
        "a.nii.gz/b.nii": overwriting("a.mha"),
    }
    series = study("ward/im000", "ward/series-0001-0123abcd")
    within = study("ward/series-0001-0123abcd/a.nii")
    assert len(blockers(refused([series, within]))) == 2


@pytest.mark.parametrize(
    ("folder", "how"),
    [("a.nii.preview.png", {"preview": True}), ("a.map-spread-sd.nii", {"maps": True})],
)
def test_file_beside_a_result_has_a_place_of_its_own(folder: str, how: dict[str, bool]) -> None:
    studies = [study("a.nii"), study(f"{folder}/b.nii"), study("a_spread.nii"), study("a.nii.gz")]
    assert not blockers(refused(studies))
    assert set(blockers(refused(studies, **how))) == {"a.nii", f"{folder}/b.nii"}


def test_results_of_channels_are_compared_as_they_are_named_in_the_end() -> None:
    channels = ("T1", "T2")
    apart = [with_results(study(name), channels) for name in ("a.nii", "a_T1.nii", "a_T2.nii")]
    assert not blockers(refused(apart))
    found = refused([*apart, study("a_T2.nii")])
    assert blockers(found)["a_T2.nii"] == overwriting("a.nii")
    assert blockers(found)["a.nii"] == overwriting("a_T2.nii")


def test_a_study_that_fails_anyway_keeps_its_reason_and_is_a_rival_nevertheless() -> None:
    own = Blocker("unsupported", "it has another modality")
    found = refused(in_format([study("a.mha", blocker=own), study("a.nii.gz")], "nifti"))
    assert blockers(found) == {"a.mha": own.reason, "a.nii.gz": overwriting("a.mha")}


def test_two_series_of_one_file_with_one_name_are_still_told_apart() -> None:
    twins = [study("one", "series-1"), study("one", "series-1"), study("two", "one (2)")]
    found = refused(twins)
    assert len({each.name for each in found.studies}) == 3
    assert len(blockers(found)) == 2


STEMS = st.sampled_from(
    ["a", "A", "b", "a_T1", "a.nii", "x/a", "x/a.nii.gz/b", "\u00e9", "e\u0301"]
)
ENDS = st.sampled_from([*SUFFIXES])


@given(
    st.sets(st.tuples(STEMS, ENDS), min_size=2, max_size=8),
    st.booleans(),
    st.sampled_from([("",), ("T1", "T2")]),
    st.randoms(use_true_random=False),
)
def test_names_are_unique_and_nothing_depends_on_the_order(
    files: set[tuple[str, str]], as_nifti: bool, channels: tuple[str, ...], shuffle: Random
) -> None:
    studies = [
        with_results(each, channels)
        for each in in_format(
            [study(f"{stem}{end}") for stem, end in sorted(files)], "nifti" if as_nifti else "same"
        )
    ]
    found = refused(studies, preview=True)
    names = [each.name for each in found.studies]
    assert len({*names}) == len(names) == len(studies)
    results = [name for each in found.studies if not each.blocker for name in each.results]
    assert len({*results}) == len(results)
    turned = [*studies]
    shuffle.shuffle(turned)
    assert refused(turned, preview=True) == found


def test_from_python_each_rival_has_a_row_and_nothing_is_made_of_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    for name in ("e\N{COMBINING ACUTE ACCENT}.nii", "\N{LATIN SMALL LETTER E WITH ACUTE}.nii"):
        scan(world.inputs / name)
    scan(world.inputs / "b.nii")
    for status in ("translated", "up to date"):
        report = cc.translate_folder(world.inputs, world.model, world.output, device="cpu")
        assert [row.status for row in report.studies] == [status, "failed", "failed"]
        assert len({row.source for row in report.studies}) == 3
        assert [row.source for row in report.studies] == [
            world.inputs / row.name for row in report.studies
        ]
    assert [path.name for path in world.output.glob("*.nii*")] == ["b.nii"]
