"""Rows of a search, a plan and an evaluation, pictures, and what a notebook shows of results."""

import re
import sys
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from PIL import Image
from support.batch_world import scan, stored, tiny_model
from support.dicom_phantoms import Phantom
from support.reports import BATCH, failed, row

import cuda_cyclegan as cc

nibabel: Any = _nibabel


def test_a_search_has_a_row_a_study(tmp_path: Path) -> None:
    scan(tmp_path / "a.nii.gz")
    scan(tmp_path / "b" / "c.nii", shape=(4, 5, 6, 7))
    (tmp_path / "cut.nii.gz").write_bytes((tmp_path / "a.nii.gz").read_bytes()[:60])
    Phantom().write(tmp_path / "series")
    rows = {study.name: study for study in cc.discover(tmp_path, exclude="x*")}
    assert (rows["a.nii.gz"].shape, rows["a.nii.gz"].spacing) == ((20, 18, 16), (1.0, 1.0, 1.0))
    assert (rows["b/c.nii"].volumes, rows["b/c.nii"].reason) == (7, None)
    assert "cut.nii.gz" in (rows["cut.nii.gz"].reason or "")
    [series] = [study for study in rows.values() if study.format == "dicom"]
    assert (series.modality, series.files > 1) == ("CT", True)
    assert cc.discover(tmp_path, include="a.*")[0] == rows["a.nii.gz"]
    with pytest.raises(cc.ScanError, match="does not exist"):
        cc.discover(tmp_path / "absent")


def test_a_plan_says_what_the_batch_then_does(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model.safetensors")
    scan(tmp_path / "scans" / "a.nii.gz")
    (tmp_path / "scans" / "bad.nii.gz").write_bytes(b"")
    where = tmp_path / "scans", model, tmp_path / "results"
    good, bad = cc.plan(*where, device="cpu")
    assert (good.action, good.voxels, good.reason) == ("translate", 20 * 18 * 16, None)
    assert good.patches > 0
    assert (bad.action, "bad.nii.gz" in (bad.reason or "")) == ("refuse", True)
    assert not (tmp_path / "results").exists()
    report = cc.translate_folder(*where, device="cpu")
    assert [row.status for row in report.studies] == ["translated", "failed"]
    assert [row.action for row in cc.plan(*where, device="cpu")] == ["keep", "refuse"]


def test_an_evaluation_has_the_figures_of_the_command(tmp_path: Path) -> None:
    truth = np.random.default_rng(0).integers(0, 900, (40, 40, 40)).astype(np.int16)
    stored(tmp_path / "truth" / "a.nii", truth)
    stored(tmp_path / "results" / "a.nii", truth + np.int16(10))
    stored(tmp_path / "truth" / "b.nii", truth)
    good, alone = cc.evaluate(tmp_path / "results", tmp_path / "truth")
    assert (good.status, good.mae, good.voxels) == ("evaluated", 10, truth.size)
    assert good.r == pytest.approx(1)
    assert (alone.status, alone.mae) == ("missing", None)
    assert all(not isinstance(value, dict) for value in asdict(good).values())
    with pytest.raises(cc.PipelineError, match="mask"):
        cc.evaluate(tmp_path / "results", tmp_path / "truth", protocol="synthrad2025")


def test_a_preview_is_a_picture_of_three_planes(tmp_path: Path) -> None:
    first, second = scan(tmp_path / "a.nii.gz"), scan(tmp_path / "b.nii.gz", 1)
    alone, both = cc.preview(second), cc.preview(second, first)
    both.save(tmp_path / "both.png")
    sizes = [Image.open(BytesIO(one.png)).size for one in (alone, both)]
    assert sizes[1] == (3 * sizes[0][0], sizes[0][1])
    assert (tmp_path / "both.png").read_bytes() == both._repr_png_()  # pyright: ignore[reportPrivateUsage]
    assert repr(both) == f"Picture({len(both.png)} bytes)"
    other = scan(tmp_path / "c.nii.gz", shape=(4, 5, 6))
    with pytest.raises(cc.PipelineError, match="on different grids"):
        cc.preview(second, other)


def test_a_preview_compares_grey_values_where_ranges_are_unlike(tmp_path: Path) -> None:
    ramp = np.arange(216, dtype=np.float32).reshape(6, 6, 6)
    first, alike, larger = (
        stored(tmp_path / f"{factor}.nii", ramp * factor) for factor in (1, 1.5, 4)
    )

    def colourful(result: Path) -> bool:
        """Whether blue or orange is among the planes of the difference, above the legend."""
        pixels = np.asarray(Image.open(BytesIO(cc.preview(result, first).png)), np.int16)
        planes = pixels[: -pixels.shape[0] // 8, 2 * pixels.shape[1] // 3 :]
        return bool((planes.max(-1) - planes.min(-1)).max() > 50)

    assert colourful(alike)
    assert not colourful(larger)


def test_a_notebook_without_ipyniivue_shows_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ipyniivue", None)
    first, second = scan(tmp_path / "a.nii.gz"), scan(tmp_path / "b.nii.gz", 1)
    assert cc.show(second, first) == cc.preview(second, first)
    assert cc.show(second).png == cc.preview(second).png


def test_a_notebook_with_ipyniivue_shows_the_volumes(tmp_path: Path) -> None:
    pytest.importorskip("ipyniivue")
    first = scan(tmp_path / "a.nii.gz")
    Phantom().write(tmp_path / "series")
    planes, notice = cc.show(tmp_path / "series").children
    [alone] = planes.volumes
    assert alone.name == "synthetic.nii"
    assert "Not for diagnosis" in notice.value
    planes, fading, _ = cc.show(first, first).children
    below, above = planes.volumes
    assert (below.name, above.name, above.opacity) == ("input.nii", "synthetic.nii", 1)
    assert [child.value for child in fading.children] == ["Input", 1, "Result"]
    shown = nibabel.Nifti1Image.from_bytes(bytes(below.data))
    np.testing.assert_array_equal(shown.get_fdata(), nibabel.load(first).get_fdata())
    assert below.cal_min < below.cal_max


def test_results_are_shown_in_one_line(tmp_path: Path) -> None:
    volume = cc.from_nibabel(__import__("nibabel").load(scan(tmp_path / "a.nii")))
    assert repr(volume) == "Volume(20x18x16, 1x1x1 mm, int16, nifti)"
    report = replace(BATCH, studies=(row("a", 1.0), row("b", 1.0), failed("c", "d")))
    assert repr(report) == "BatchReport(results: 2 translated, 1 failed in 10.0 s)"
    good, _, bad = report.studies
    assert repr(good) == "StudyReport(a: translated in 1.0 s)"
    assert repr(bad) == "StudyReport(c: failed: d)"
    model = cc.load_model(tiny_model(tmp_path / "model.safetensors"))
    assert re.fullmatch(r"Model\([^,]+, [\d,]+ weights\)", repr(model))
    with cc.Translator(model, device="cpu") as translator:
        assert repr(translator) == f"Translator({model.card.name}, {translator.device})"
