"""Studies to look at, from folders, reports and pairs."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.batch_world import scan
from support.dicom_phantoms import Phantom
from support.reports import BATCH, failed, row, written
from support.translate_world import World

from cuda_cyclegan.io.errors import ScanError
from cuda_cyclegan.pipelines.results.resume import preview_of
from cuda_cyclegan.pipelines.view.studies import Role, Viewing, find_viewing, of_report


def images(viewing: Viewing) -> dict[str, dict[Role, str]]:
    """Names of the files of each study, by role."""
    return {
        study.name: {role: one.path.name for role, one in study.images.items()}
        for study in viewing.studies
    }


def test_a_pair_of_files_is_one_study_whatever_their_names(tmp_path: Path) -> None:
    given, made = scan(tmp_path / "x.nii.gz"), scan(tmp_path / "out" / "y.nii.gz")
    viewing = find_viewing((given, made), given)
    assert images(viewing) == {
        "y.nii.gz": {"input": "x.nii.gz", "result": "y.nii.gz", "truth": "x.nii.gz"}
    }
    assert viewing.folders == (tmp_path / "out",)


def test_folders_are_paired_by_name_and_maps_lie_beside_results(tmp_path: Path) -> None:
    for folder in ("scans", "results", "truth"):
        scan(tmp_path / folder / "p1" / "a.nii.gz")
    scan(tmp_path / "scans" / "b.nii.gz")
    scan(tmp_path / "results" / "c.nii")
    for kind in ("spread-sd", "spread-mean", "disagreement", "cycle"):
        scan(tmp_path / "results" / "p1" / f"a.map-{kind}.nii.gz")
    viewing = find_viewing((tmp_path / "scans", tmp_path / "results"), tmp_path / "truth")
    assert images(viewing) == {
        "c.nii": {"result": "c.nii"},
        "p1/a.nii.gz": {
            "input": "a.nii.gz",
            "result": "a.nii.gz",
            "spread": "a.map-spread-sd.nii.gz",
            "disagreement": "a.map-disagreement.nii.gz",
            "cycle": "a.map-cycle.nii.gz",
            "truth": "a.nii.gz",
        },
    }


def test_a_folder_without_a_report_shows_its_results(tmp_path: Path) -> None:
    scan(tmp_path / "results" / "a.nii.gz")
    assert images(find_viewing((tmp_path / "results",))) == {"a.nii.gz": {"result": "a.nii.gz"}}
    picture = preview_of(tmp_path / "results" / "a.nii.gz")
    picture.write_bytes(b"")
    assert find_viewing((tmp_path / "results",)).studies[0].preview == picture
    (tmp_path / "empty").mkdir()
    with pytest.raises(ScanError, match="contains no results"):
        find_viewing((tmp_path / "empty",))


def test_a_report_has_rows_and_its_folder_may_have_moved(tmp_path: Path) -> None:
    bad = failed("bad.nii", "It is empty.")
    report = written(replace(BATCH, studies=(row("a.nii", 1.0), bad)), tmp_path / "r.json")
    viewing = find_viewing((report,))
    assert images(viewing) == {
        "a.nii": {"input": "a.nii", "result": "a.nii"},
        "bad.nii": {"input": "bad.nii"},
    }
    assert viewing.stored
    moved = of_report(viewing.stored, tmp_path / "elsewhere")
    assert moved.studies[0].images["result"].path == tmp_path / "elsewhere" / "a.nii"
    assert [study.row.status for study in moved.studies if study.row] == ["translated", "failed"]


def test_a_dicom_result_has_the_name_of_its_folder_as_in_a_report(tmp_path: Path) -> None:
    results = tmp_path / "results"
    Phantom().write(results / "anna" / "series-0003-a1")
    assert [study.name for study in find_viewing((results,)).studies] == ["anna/series-0003-a1"]
    Phantom(series="1.2.3.9").write(results / "anna" / "series-0003-a1", prefix="second")
    names = [study.name for study in find_viewing((results,)).studies]
    assert len(set(names)) == 2
    assert all(name.startswith("anna/series-0003-a1/series-") for name in names)


def test_the_truth_of_a_dicom_result_in_a_report_is_found(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for name in ("anna", "berta"):
        Phantom(study=f"1.2.3.{len(name)}").write(results / name)
    both = tuple(replace(row(name, 1.0), output=results / name) for name in ("anna", "berta"))
    report = written(replace(BATCH, output=results, studies=both), tmp_path / "r.json")
    viewing = find_viewing((report,), results)
    assert ["truth" in study.images for study in viewing.studies] == [True, True]


def test_scans_and_results_list_the_failures_of_the_report(tmp_path: Path) -> None:
    """The results alone list them too, with the rows of all studies."""
    world = World(tmp_path)
    for name in ("a", "b"):
        scan(world.inputs / f"{name}.nii.gz")
    (world.inputs / "bad.nii.gz").write_bytes(b"\x1f\x8bjunk")
    assert world.translate().exit_code == 1
    alone = find_viewing((world.output,))
    both = find_viewing((world.inputs, world.output))

    def shown(viewing: Viewing) -> dict[str, tuple[str, list[Role]]]:
        return {
            study.name: (study.row.status if study.row else "", list(study.images))
            for study in viewing.studies
        }

    assert shown(both) == shown(alone)
    assert shown(both)["bad.nii.gz"] == ("failed", ["input"])
    assert both.stored == alone.stored
