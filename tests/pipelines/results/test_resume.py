"""Results to make, results to keep, and files that must not be destroyed."""

import shutil
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import SimpleITK as _SimpleITK
from support.io_files import write_later

from cuda_cyclegan.io.maps import MapMark
from cuda_cyclegan.io.volume import Study
from cuda_cyclegan.pipelines.results.file_states import FileState
from cuda_cyclegan.pipelines.results.manifest import ManifestEntry, Recipe
from cuda_cyclegan.pipelines.results.resume import MOVED, NO_PICTURE, PlannedStudy, Planner

sitk: Any = _SimpleITK
RECIPE = Recipe("model", "settings")
LONGEST = 255
"""Bytes of a name on every file system that tests run on."""


class Folder:
    """An input, and the result that an earlier run made of it."""

    def __init__(self, root: Path) -> None:
        self.source = root / "in" / "a.nii"
        self.output = root / "out"
        self.source.parent.mkdir()
        self.source.write_bytes(b"input")
        self.target = self.output / "sub" / "a.nii"
        self.target.parent.mkdir(parents=True)
        self.target.write_bytes(b"result")
        self.entry = ManifestEntry(
            output="sub/a.nii",
            status="written",
            program="0.1.0",
            recipe=RECIPE,
            inputs=(FileState.of(self.source),),
            outputs=(FileState.of(self.target),),
        )

    def plan(
        self, entry: ManifestEntry | None, recipe: Recipe = RECIPE, *, overwrite: bool = False
    ) -> PlannedStudy:
        entries = {entry.output: entry} if entry else {}
        study = Study(PurePosixPath("sub/a.nii"), (self.source,), "nifti")
        [planned] = Planner(self.output, entries, recipe, overwrite).plan([study])
        assert planned.target == self.target
        return planned


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_an_untouched_result_is_kept(folder: Folder) -> None:
    planned = folder.plan(folder.entry)
    assert (planned.action, planned.refreshed) == ("keep", None)


def test_overwrite_makes_everything_anew(folder: Folder) -> None:
    planned = folder.plan(folder.entry, overwrite=True)
    assert (planned.action, planned.replaces) == ("translate", True)


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        (Recipe("other", "settings"), "the model changed"),
        (Recipe("model", "other"), "the settings changed"),
    ],
)
def test_another_recipe_is_due_and_says_why(folder: Folder, recipe: Recipe, reason: str) -> None:
    planned = folder.plan(folder.entry, recipe)
    assert (planned.action, planned.reason, planned.replaces) == ("translate", reason, True)


OLD, NEW = ("name", "T1", "T2"), ("name", "T1", "CT")


@pytest.mark.parametrize(
    ("reported", "now", "reason"),
    [
        (OLD, NEW, "the model's labels changed"),
        (OLD, OLD, None),
        ((), NEW, None),
        (OLD, (), None),
    ],
    ids=["others", "the same", "it tells none", "nobody knows today's"],
)
def test_a_result_that_shows_other_words_of_its_model_is_due(
    folder: Folder, reported: tuple[str, ...], now: tuple[str, ...], reason: str | None
) -> None:
    assert replace(folder.entry, words=reported).change_of(RECIPE.model, now) == reason


def test_a_changed_input_is_due(folder: Folder) -> None:
    write_later(folder.source, b"INPUT")
    planned = folder.plan(folder.entry)
    assert (planned.action, planned.reason) == ("translate", "the input changed")


def test_a_touched_input_is_kept_and_its_new_marks_are_handed_on(folder: Folder) -> None:
    write_later(folder.source, b"input")
    planned = folder.plan(folder.entry)
    assert planned.action == "keep"
    assert planned.refreshed == replace(folder.entry, inputs=(FileState.of(folder.source),))


def test_a_moved_output_folder_is_kept(folder: Folder, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(folder.output, moved)
    folder.output, folder.target = moved, moved / "sub" / "a.nii"
    assert folder.plan(folder.entry).action == "keep"


def test_a_deleted_result_is_due(folder: Folder) -> None:
    folder.target.unlink()
    planned = folder.plan(folder.entry)
    assert (planned.action, planned.reason) == ("translate", "its result was deleted")


def test_a_new_study_is_due_without_a_word(folder: Folder) -> None:
    folder.target.unlink()
    planned = folder.plan(None)
    assert (planned.action, planned.reason, planned.replaces) == ("translate", None, False)


@pytest.mark.parametrize(
    ("file", "name", "is_told"),
    [
        ("in/a.nii", "a.nii", True),
        ("in/a.nii", "in/sub/a.nii", True),
        ("in/b.nii", "sub/b.nii", False),
        ("other/a.nii", "other/a.nii", False),
    ],
)
def test_a_result_of_another_name_is_reported_but_not_that_of_another_name_of_the_scan(
    folder: Folder, file: str, name: str, is_told: bool
) -> None:
    """A worker plans each study of a batch alone, so it sees results of all the others."""
    scan = folder.source.parents[1] / file
    scan.parent.mkdir(exist_ok=True)
    if scan != folder.source:
        scan.hardlink_to(folder.source)
    entries = {folder.entry.output: folder.entry}
    study = Study(PurePosixPath(name), (scan,), "nifti")
    [planned] = Planner(folder.output, entries, RECIPE, overwrite=False).plan([study])
    assert planned.action == "translate"
    assert (planned.reason == MOVED) == is_told
    assert bool(planned.study.notes) == is_told


@pytest.mark.parametrize("spare", [11, 12])
def test_a_preview_whose_name_would_be_too_long_is_left_out_and_the_result_is_made(
    folder: Folder, spare: int
) -> None:
    planned = plan_named(folder, spare, preview=True)
    has_room = spare >= len(".preview.png")
    assert (planned.action, planned.reason) == ("translate", None)
    assert planned.study.notes == (() if has_room else (NO_PICTURE,))
    assert (planned.picture is not None) == has_room


@pytest.mark.parametrize(("spare", "maps"), [(-1, ()), (13, (MapMark("spread-sd", "", ""),))])
def test_a_result_or_map_whose_name_would_be_too_long_is_refused_before_it_is_made(
    folder: Folder, spare: int, maps: tuple[MapMark, ...]
) -> None:
    planned = plan_named(folder, spare, maps=maps)
    assert planned.action == "refuse"
    assert planned.refusal is not None
    assert planned.refusal.kind == "write"
    assert (
        "has a name that is too long for its disk; choose a shorter one" in planned.refusal.reason
    )
    assert plan_named(folder, spare + 1, maps=maps).action == "translate"


@pytest.mark.parametrize(
    ("suffix", "beside", "packed"),
    [(".mhd", ".raw", False), (".mhd", ".zraw", True), (".nhdr", ".raw.gz", True)],
)
def test_long_names_of_headers_leave_room_for_the_voxel_file(
    tmp_path: Path, suffix: str, beside: str, packed: bool
) -> None:
    """Packed voxels have a longer name than their header; others never have."""
    source = tmp_path / f"a{suffix}"
    image = sitk.GetImageFromArray(np.zeros((8, 8, 8), np.int16))
    sitk.WriteImage(image, str(source), packed)
    for length, is_refused in ((LONGEST, False), (LONGEST + 1, True)):
        name = "a" * (length - len(max(beside, suffix, key=len))) + suffix
        study = Study(PurePosixPath(name), (source,), "metaimage")
        [planned] = Planner(tmp_path / "out", {}, RECIPE, False).plan([study])
        reason = planned.refusal.reason if planned.refusal else ""
        assert ("has a name that is too long for its disk" in reason) == is_refused
        assert (beside in reason) == (is_refused and packed)


def plan_named(
    folder: Folder, spare: int, *, preview: bool = False, maps: tuple[MapMark, ...] = ()
) -> PlannedStudy:
    """The plan of a scan whose result's name leaves room for so many further letters."""
    name = "a" * (LONGEST - spare - len(".nii")) + ".nii"
    study = Study(PurePosixPath("new") / name, (folder.source,), "nifti")
    [planned] = Planner(folder.output, {}, RECIPE, False, preview=preview, maps=maps).plan([study])
    return planned


@pytest.mark.parametrize("status", [None, "failed"])
def test_a_foreign_file_is_refused(folder: Folder, status: str | None) -> None:
    entry = replace(folder.entry, status="failed", outputs=()) if status else None
    planned = folder.plan(entry)
    assert planned.action == "refuse"
    assert planned.reason is not None
    assert (
        "was not written by this program; move it away or use setting overwrite" in planned.reason
    )


def test_a_dangling_link_at_the_target_counts_as_foreign(folder: Folder) -> None:
    folder.target.unlink()
    folder.target.symlink_to("nowhere")
    assert folder.plan(None).action == "refuse"


def test_a_result_edited_by_hand_is_refused(folder: Folder) -> None:
    write_later(folder.target, b"edited")
    planned = folder.plan(folder.entry)
    assert planned.action == "refuse"
    assert "changed after this program wrote it" in (planned.reason or "")


def test_result_of_a_killed_run_is_ours(folder: Folder) -> None:
    planned = folder.plan(replace(folder.entry, status="writing"))
    assert (planned.action, planned.replaces) == ("translate", True)
    assert planned.reason == "an earlier run was stopped while writing it"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("link", ["same", "hard", "symbolic"])
def test_an_input_is_never_a_target(folder: Folder, overwrite: bool, link: str) -> None:
    match link:
        case "same":
            folder.source = folder.target
        case "hard":
            folder.target.unlink()
            folder.target.hardlink_to(folder.source)
        case _:
            folder.target.unlink()
            folder.target.symlink_to(folder.source)
    planned = folder.plan(folder.entry, overwrite=overwrite)
    assert planned.action == "refuse"
    assert "is itself an input" in (planned.reason or "")


def test_an_unreadable_input_is_due_so_that_reading_shows(folder: Folder) -> None:
    folder.source.unlink()
    assert folder.plan(folder.entry).action == "translate"


class TestResultsOfTwoFiles:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Folder:
        """Return a folder as above, but for a header and its voxels."""
        folder = Folder(tmp_path)
        folder.target.rename(folder.target.with_name("a.mhd"))
        folder.target = folder.target.with_name("a.mhd")
        voxels = folder.target.with_name("a.raw")
        voxels.write_bytes(b"voxels")
        outputs = FileState.of(folder.target), FileState.of(voxels)
        folder.entry = replace(folder.entry, output="sub/a.mhd", outputs=outputs)
        return folder

    def plan(self, folder: Folder, entry: ManifestEntry | None) -> PlannedStudy:
        planner = Planner(folder.output, {"sub/a.mhd": entry} if entry else {}, RECIPE, False)
        study = Study(PurePosixPath("sub/a.mhd"), (folder.source,), "metaimage")
        [planned] = planner.plan([study])
        return planned

    def test_both_are_kept(self, folder: Folder) -> None:
        planned = self.plan(folder, folder.entry)
        assert planned.action == "keep"

    @pytest.mark.parametrize("name", ["a.mhd", "a.raw"])
    def test_either_one_deleted_is_due(self, folder: Folder, name: str) -> None:
        folder.target.with_name(name).unlink()
        planned = self.plan(folder, folder.entry)
        assert planned.reason == "a part of its result was deleted"

    def test_changed_voxels_are_refused(self, folder: Folder) -> None:
        write_later(folder.target.with_name("a.raw"), b"edited")
        planned = self.plan(folder, folder.entry)
        assert planned.action == "refuse"

    def test_foreign_voxels_are_refused(self, folder: Folder) -> None:
        folder.target.unlink()
        planned = self.plan(folder, None)
        assert planned.action == "refuse"
        assert "a.raw was not written by this program" in (planned.reason or "")
