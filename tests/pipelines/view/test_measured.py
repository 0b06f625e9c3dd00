"""Results of another program, measured when they are looked at."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
from support.calibration_scans import head, save

from cuda_cyclegan.pipelines.report.suspicion import reading_order, suspicions
from cuda_cyclegan.pipelines.view.measured import measured
from cuda_cyclegan.pipelines.view.studies import Viewing, find_viewing


def cohort(folder: Path) -> Viewing:
    """Twelve good results, a moved one, one with NaN, and one on another grid."""
    for seed in range(15):
        scan = head(seed)
        save(folder / "scans" / f"{seed:02}.nii", scan)
        result = scan.astype(np.float32) * 2 + 5
        if seed == 12:
            result = np.roll(result, 6, 0)
        if seed == 13:
            result[3, 3, :4] = np.nan
        if seed == 14:
            result = result[:-1]
        save(folder / "results" / f"{seed:02}.nii", result)
    return find_viewing((folder / "scans", folder / "results"))


def test_results_without_a_row_are_measured_and_the_odd_come_first(tmp_path: Path) -> None:
    found = cohort(tmp_path)
    files = sorted(tmp_path.rglob("*"))
    counts = list[tuple[int, int]]()
    studies = measured(found, lambda *count: counts.append(count)).studies
    rows = {study.name: study.row for study in studies}
    known = [row for row in rows.values() if row]
    assert len(known) == 15
    assert counts == [(done, 15) for done in range(15)]
    judged = suspicions(known)
    order = [known[at].name for at in reading_order(judged)]
    assert set(order[:2]) == {"13.nii", "14.nii"}
    assert order[2] == "12.nii"
    assert "shift" in {one.key for one in judged[12].findings}
    assert known[13].notes == ("4 voxels of its result are NaN or infinite",)
    assert known[14].notes[0].startswith("it has no measures, as the grids of scan and result")
    assert sorted(tmp_path.rglob("*")) == files


def test_a_negative_slope_changes_no_measure(tmp_path: Path) -> None:
    scan = head(1)
    stored = np.rint(scan / scan.max() * 200).astype(np.int16)
    turned = nibabel.Nifti1Image(-stored, np.eye(4))
    turned.header.set_slope_inter(-2, 0)
    for name in ("scans", "results"):
        save(tmp_path / name / "plain.nii", stored * 2.0)
        nibabel.save(turned, tmp_path / name / "turned.nii")
    found = find_viewing((tmp_path / "scans", tmp_path / "results"))
    rows = [study.row for study in measured(found, lambda *_: None).studies]
    plain, other = (row and row.measures for row in rows)
    assert plain
    assert other
    assert other.edges == pytest.approx(plain.edges)
    assert other.levels[0] == pytest.approx(plain.levels[0])


def test_a_row_stays_and_results_alone_have_none(tmp_path: Path) -> None:
    once = measured(cohort(tmp_path), lambda *_: None)
    counts = list[tuple[int, int]]()
    assert measured(once, lambda *count: counts.append(count)) == once
    assert not counts
    alone = find_viewing((tmp_path / "results",))
    assert measured(alone, lambda *_: None) == alone


def test_a_file_that_vanished_meanwhile_has_a_note(tmp_path: Path) -> None:
    found = cohort(tmp_path)
    (tmp_path / "results" / "00.nii").unlink()
    row = measured(found, lambda *_: None).studies[0].row
    assert row is not None
    assert row.measures is None
    assert row.notes[0].startswith("it has no measures: ")
