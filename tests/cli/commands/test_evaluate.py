"""The evaluate command: tables, files, the page, exit statuses, DICOM, and a stop."""

import csv
import json
import os
import signal
import threading
from base64 import b64decode
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.batch_world import identity_model, stored
from support.dicom_phantoms import Phantom
from support.evaluation_images import without_extension
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.cli.render.evaluation import summary_figures
from cuda_cyclegan.pipelines.evaluation import evaluation as module
from cuda_cyclegan.pipelines.evaluation.images import Images
from cuda_cyclegan.pipelines.evaluation.protocols import MeasuredPair, Protocol
from cuda_cyclegan.pipelines.evaluation.report import METRICS, Summary

SHAPE = (20, 24, 16)


@dataclass(frozen=True)
class World:
    """CT-like truths, results that are off by 10 a study, and masks."""

    root: Path

    def fill(self, count: int = 3) -> "World":
        truth = np.linspace(-1000, 1500, num=int(np.prod(SHAPE))).reshape(SHAPE).astype(np.int16)
        for at in range(count):
            stored(self.root / "truth" / f"{at}.nii", truth)
            stored(self.root / "results" / f"{at}.nii", truth + np.int16(10 * (at + 1)))
            stored(self.root / "masks" / f"{at}.nii", np.ones(SHAPE, np.uint8))
        return self

    def evaluate(self, *options: str, masks: bool = False) -> Result:
        folders = [self.root / "results", "--truth", self.root / "truth"]
        masked = ["--mask", self.root / "masks"] if masks else []
        return CliRunner().invoke(app, ["evaluate", *map(str, [*folders, *masked]), *options])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path).fill()


@pytest.fixture
def without_ms_ssim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons in 2 ms instead of 200: small scans are not extended to the five scales."""
    measure = module.measure

    def quick(images: Images, protocol: Protocol, modality: str | None) -> MeasuredPair:
        return measure(images, without_extension(protocol), modality)

    monkeypatch.setattr(module, "measure", quick)


def test_a_row_a_study_and_all_of_them_together(world: World) -> None:
    result = world.evaluate("--protocol", "synthrad2025", masks=True)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["study", "MAE", "PSNR,", "dB", "MS-SSIM", "SSIM", "r", "status"]
    assert lines[2].split()[:2] == ["0.nii", "10.00"]
    assert lines[2].split()[-1] == "evaluated"
    [mean, *_] = [line for line in lines if line.startswith("MAE")]
    assert mean.split() == ["MAE", "20.00", "8.165", "20.00", "30.00", "2.nii"]
    assert "Protocol synthrad2025: MAE in HU, data range -1024 to 3071" in lines
    assert lines[-1].endswith("3 evaluated")


def test_synthrad2025_takes_no_values_outside_the_field_of_view(world: World) -> None:
    result = world.evaluate("--protocol", "synthrad2025", "--outside", "-3024", masks=True)
    assert result.exit_code == 2
    assert "this protocol measures whole masks" in " ".join(result.output.split())


@pytest.mark.usefixtures("without_ms_ssim")
def test_a_fill_value_is_masked_and_counted_in_all_outputs(tmp_path: Path) -> None:
    world = World(tmp_path).fill(1)
    for folder, error in (("truth", 0), ("results", 1)):
        image = np.full(SHAPE, 7, np.int16)
        image[:10] = np.arange(10)[:, None, None] + error
        stored(world.root / folder / "0.nii", image)
    file = world.root / "e.csv"
    result = world.evaluate("--outside", "7", "--csv", str(file), "--json", "-")
    assert result.exit_code == 0
    reported = json.loads(result.stdout)
    assert reported["schema"] == "cuda-cyclegan/evaluation/2"
    assert (reported["studies"][0]["voxels"], reported["studies"][0]["outside"]) == (
        9 * 384,
        11 * 384,
    )
    assert reported["studies"][0]["voxels_bone"] is None
    with file.open(newline="") as lines:
        [row] = csv.DictReader(lines)
    assert (row["outside"], row["mae_bone"], row["voxels_bone"]) == (str(11 * 384), "", "")
    assert "4224 voxels outside the truth's field of view do not count" in result.stderr


@pytest.mark.usefixtures("without_ms_ssim")
def test_a_ct_has_the_errors_of_each_tissue(world: World) -> None:
    result = world.evaluate("--json", str(world.root / "e.json"))
    assert "Dice >= 150 HU" in result.stdout
    reported = json.loads((world.root / "e.json").read_text())
    assert [study["me_bone"] for study in reported["studies"]] == [10, 20, 30]
    assert reported["studies"][0]["voxels_soft"] > 0
    assert reported["summary"]["me_fat"]["worst"] == 30
    (world.root / "truth" / "1.nii").unlink()
    (world.root / "truth" / "2.nii").unlink()
    alone = world.evaluate().stdout
    assert any(line.split() == ["ME", "bone", "10.00"] for line in alone.splitlines())


@pytest.mark.slow
def test_a_general_protocol_shows_each_data_range(world: World) -> None:
    shown = world.evaluate().stdout
    assert shown.count("-1000 to 1500") == 3
    assert "data range of each truth" in shown
    shown = world.evaluate("--data-range", "-1024,3071").stdout
    assert "Protocol general: MAE in the truth's unit, data range -1024 to 3071" in shown


@pytest.mark.usefixtures("without_ms_ssim")
def test_whoever_fails_or_lacks_a_partner_stands_last_and_in_the_status(world: World) -> None:
    stored(world.root / "results" / "1.nii", np.zeros((4, 5, 6), np.int16))
    (world.root / "truth" / "2.nii").unlink()
    result = world.evaluate()
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "failed: 1.nii: The grids of result and truth differ: 4 x 5 x 6 voxels against "
        "20 x 24 x 16; nothing is resampled here, so bring both onto one grid.",
        "missing: 2.nii: no ground truth matches it",
    ]
    assert "1 evaluated, 1 missing, 1 failed" in result.stdout


@pytest.mark.parametrize("folder", ["results", "truth", "masks"])
def test_several_volumes_fail_without_advice_on_an_option_of_others(
    world: World, folder: str
) -> None:
    stored(world.root / folder / "1.nii", np.zeros((*SHAPE, 3), np.int16))
    failed = " ".join(world.evaluate(masks=True).stderr.split())
    assert "contains 3 volumes (20 x 24 x 16 x 3), but only one can be used here" in failed
    assert "save one as a separate file." in failed
    assert "--volume" not in failed


def test_a_single_study_has_no_standard_deviation(tmp_path: Path) -> None:
    world, page = World(tmp_path).fill(1), tmp_path / "e.html"
    assert world.evaluate("--html", str(page)).exit_code == 0
    text = page.read_text()
    assert "0.nii" in text
    assert "Not for diagnosis" in text
    assert ">sd<" not in text
    mae = Summary(METRICS[0], 1, 2.0, 0.0, 2.0, 2.0, "0.nii")
    assert summary_figures(mae) == ["2.000", "", "2.000", "2.000"]


@pytest.mark.usefixtures("without_ms_ssim")
def test_files_for_scripts_hold_all_figures(world: World) -> None:
    (world.root / "truth" / "2.nii").unlink()
    files = world.root / "e.json", world.root / "e.csv"
    result = world.evaluate("--json", str(files[0]), "--csv", str(files[1]))
    assert result.exit_code == 1
    reported: dict[str, Any] = json.loads(files[0].read_text())
    assert reported["totals"] == {
        "studies": 3,
        "evaluated": 2,
        "missing": 1,
        "failed": 0,
        "stopped": 0,
    }
    assert reported["summary"]["mae"]["mean"] == pytest.approx(15)
    assert reported["summary"]["psnr"]["worst_study"] == "1.nii"
    assert reported["studies"][0]["data_range"] == [-1000, 1500]
    with files[1].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["evaluated", "evaluated", "missing"]
    assert float(rows[1]["mae"]) == reported["studies"][1]["mae"] == 20
    assert rows[2]["mae"] == ""
    assert rows[2]["reason"] == "no ground truth matches it"


@pytest.mark.usefixtures("without_ms_ssim")
def test_each_written_file_is_named(world: World) -> None:
    files = [world.root / name for name in ("e.json", "e.csv")]
    options = (part for file in files for part in (f"--{file.suffix[1:]}", str(file)))
    lines = world.evaluate(*options).stdout.splitlines()
    shown = [line.removeprefix("Written: ") for line in lines if line.startswith("Written: ")]
    assert [line.rpartition(",")[0] for line in shown] == list(map(str, files))


@pytest.mark.slow
def test_json_on_standard_output_is_alone_there(world: World) -> None:
    result = world.evaluate("--json", "-")
    assert json.loads(result.stdout)["totals"]["evaluated"] == 3
    assert "Protocol general" in result.stderr


@pytest.mark.slow
def test_the_page_shows_spread_and_worst_first_and_needs_no_other_file(world: World) -> None:
    (world.root / "truth" / "0.nii").rename(world.root / "truth" / "<b>0.nii")
    page = world.root / "e.html"
    result = world.evaluate("--html", str(page))
    assert result.exit_code == 1
    assert f"Written: {page}, " in result.stdout
    source = page.read_text("utf-8")
    assert "<script" not in source
    assert "<b>0" not in source
    assert "&lt;b&gt;0.nii" in source
    assert "<th>study</th><th>status</th><th>reason</th>" in source
    assert source.count("<circle") == (9 + 10 + 2) * 2, "a dot a study and metric"
    pictures = source.split('src="data:image/webp;base64,')[1:]
    assert len(pictures) == 2
    shown = Image.open(BytesIO(b64decode(pictures[0].partition('"')[0])))
    assert shown.format == "WEBP"
    assert source.index("2.nii: MAE 30.00") < source.index("1.nii: MAE 20.00")


@pytest.mark.slow
def test_an_error_of_0_stands_below_its_picture(world: World) -> None:
    truth = world.root / "truth" / "0.nii"
    (world.root / "results" / "0.nii").write_bytes(truth.read_bytes())
    page = world.root / "e.html"
    assert world.evaluate("--html", str(page), "--any-truth").exit_code == 0
    assert "0.nii: MAE 0.000; MS-SSIM 1.0000" in page.read_text("utf-8")


@pytest.mark.parametrize("option", ["--csv", "--html", "--json"])
def test_existing_file_is_not_replaced(world: World, option: str) -> None:
    file = world.root / "e"
    file.write_text("mine")
    result = world.evaluate(option, str(file))
    assert result.exit_code == 2
    assert "already exists; choose another name or use --force" in result.stderr
    assert file.read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--csv", "--html", "--json"])
def test_existing_file_is_replaced_on_request(world: World, option: str) -> None:
    file = world.root / "e"
    file.write_text("mine")
    assert world.evaluate(option, str(file), "--force").exit_code == 0
    assert file.read_text() != "mine"


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (["--protocol", "synthrad2025"], "give them with --mask"),
        (["--protocol", "synthrad2025", "--data-range", "0,1"], "defines the data range"),
        (["--data-range", "5"], "is not a value range"),
        (["--data-range", "5,5"], "is not a value range"),
        (["--data-range", "1.2.3,5"], "is not a value range"),
        (["--outside", "air"], "is neither a value such as -2000 nor none"),
        (["--pairs", "nowhere.csv"], "nowhere.csv cannot be used"),
        (["--truth", "nowhere"], "nowhere does not exist"),
        (["--json", "nowhere/e.json"], "folder 'nowhere' does not exist; create it"),
    ],
)
def test_wrong_usage_is_reported(world: World, options: list[str], reported: str) -> None:
    result = world.evaluate(*options)
    assert result.exit_code == 2
    assert reported in " ".join(result.output.replace("│", " ").split())


def test_nothing_is_written_if_nothing_pairs(world: World) -> None:
    for at in range(3):
        (world.root / "truth" / f"{at}.nii").rename(world.root / "truth" / f"t{at}.nii")
    asked = ["--json", "--csv", "--html"]
    files = [world.root / f"e{option}" for option in asked]
    options = [str(word) for both in zip(asked, files, strict=True) for word in both]
    result = world.evaluate(*options)
    assert result.exit_code == 1
    assert not any(file.exists() for file in files)
    assert result.stderr.splitlines()[-2:] == [
        "Results are paired by name. Pair others with --pairs FILE.csv (columns result,truth), or "
        "name one result and one truth.",
        "No file was written, because nothing was evaluated.",
    ]


def test_json_on_standard_output_lists_what_does_not_pair(world: World) -> None:
    for at in range(3):
        (world.root / "truth" / f"{at}.nii").unlink()
    stored(world.root / "truth" / "t.nii", np.zeros(SHAPE, np.int16))
    result = world.evaluate("--json", "-")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["totals"]["missing"] == 4
    assert "No file was written" not in result.stderr


def test_no_study_at_all_has_a_status_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "truth").mkdir()
    result = World(tmp_path).evaluate()
    assert result.exit_code == 3
    assert "No study found" in result.stderr


def test_a_translated_dicom_series_is_held_against_the_ct_of_its_study(world: World) -> None:
    scans, results, truth = (world.root / name for name in ("mr", "derived", "ct"))
    scanned = Phantom("MR", number=4, series="1.2.3.4.5.7", intercept=0.0)
    scanned.write(scans / "patient")
    replace(scanned, number=9, series="1.2.3.4.5.8").write(truth / "other" / "place")
    model = identity_model(world.root / "model.safetensors")
    asked = ["translate", scans, "--model", model, "--output", results, "--device", "cpu"]
    assert CliRunner().invoke(app, [*map(str, asked)]).exit_code == 0
    asked = ["evaluate", results, "--truth", truth, "--json", "-"]
    done = CliRunner().invoke(app, [*map(str, asked)])
    assert done.exit_code == 0, done.output
    [study] = json.loads(done.stdout)["studies"]
    assert study["status"] == "evaluated"
    assert study["r"] > 0.99


def test_an_mr_series_is_no_truth_of_synthrad2025(world: World) -> None:
    scans = world.root / "mr"
    Phantom("MR", intercept=-3000.0).write(scans)
    asked = ["evaluate", scans, "--truth", scans, "--mask", scans, "--any-truth"]
    asked += ["--json", "-"]
    result = CliRunner().invoke(app, [*map(str, asked), "--protocol", "synthrad2025"])
    [study] = json.loads(result.stdout)["studies"]
    assert study["reason"] == (
        "The truth is of modality MR, and protocol synthrad2025 compares only CT."
    )


def test_a_stop_writes_what_is_done(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.fill(8)
    may_end, measure = threading.Event(), module.measure
    first = iter([signal.SIGTERM])

    def stopped(*asked: Any) -> Any:
        for number in first:
            os.kill(os.getpid(), number)
        may_end.wait()
        return measure(*asked)

    monkeypatch.setattr(module, "measure", stopped)
    try:
        result = world.evaluate("--json", str(world.root / "e.json"))
    finally:
        may_end.set()
    assert result.exit_code == 143
    assert result.stderr.splitlines()[-1] == "Stopped."
    reported = json.loads((world.root / "e.json").read_text())
    assert reported["interrupted"]
    assert reported["totals"]["stopped"] == 8


def test_a_fault_of_the_program_fails_a_study_alone_and_shows_its_trace(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(module, "measure", broken)
    result = world.evaluate("--verbose")
    assert result.exit_code == 1
    assert "failed: 0.nii: ZeroDivisionError: oops" in result.stderr
    assert 'raise ZeroDivisionError("oops")' in result.stderr


class TestSegmentations:
    """`--segmentations RESULTS TRUTH`: overlap of labels."""

    @staticmethod
    def evaluate(world: World, *options: str) -> Result:
        folders = [str(world.root / f"segmented-{of}") for of in ("results", "truth")]
        return world.evaluate("--segmentations", *folders, *options)

    @pytest.fixture
    def segmented(self, world: World) -> World:
        labels = np.zeros(SHAPE, np.uint8)
        labels[4:10, 5:12, 4:12] = 1
        labels[12:18, 5:12, 4:12] = 5
        for at in range(3):
            stored(world.root / "segmented-truth" / f"{at}.nii", labels)
            moved = np.roll(labels, at, axis=0)
            stored(world.root / "segmented-results" / f"{at}.nii", moved)
        return world

    @pytest.mark.slow
    def test_each_label_is_shown_and_stored(self, segmented: World) -> None:
        files = [segmented.root / name for name in ("figures.json", "figures.csv")]
        done = self.evaluate(segmented, "--json", str(files[0]), "--csv", str(files[1]))
        assert done.exit_code == 0, done.output
        lines = [line.split() for line in done.stdout.splitlines()]
        assert ["label", "studies", "Dice", "HD95,", "mm"] in lines
        assert ["5", "3", "0.8333", "1.00"] in lines
        reported = json.loads(files[0].read_text())
        assert reported["summary"]["hd95_labels"]["worst"] == pytest.approx(2)
        assert reported["studies"][2]["dice_labels"] == pytest.approx(2 / 3)
        assert reported["studies"][2]["labels"][0] == {
            "label": 1,
            "name": "",
            "dice": pytest.approx(2 / 3),
            "hd95": pytest.approx(2),
            "voxels_truth": 336,
            "voxels_result": 336,
        }
        rows = list(csv.DictReader(files[1].read_text().splitlines()))
        assert [float(row["hd95_labels"]) for row in rows] == pytest.approx([0, 1, 2])

    @pytest.mark.usefixtures("without_ms_ssim")
    def test_without_them_the_figures_are_empty(self, world: World) -> None:
        file = world.root / "figures.json"
        assert world.evaluate("--json", str(file)).exit_code == 0
        [row, *_] = json.loads(file.read_text())["studies"]
        assert (row["dice_labels"], row["hd95_labels"], row["labels"]) == (None, None, [])

    @pytest.mark.usefixtures("without_ms_ssim")
    def test_another_grid_and_a_missing_file_are_named(self, segmented: World) -> None:
        small = np.ones((4, 24, 16), np.uint8)
        stored(segmented.root / "segmented-results" / "0.nii", small)
        (segmented.root / "segmented-truth" / "1.nii").unlink()
        done = self.evaluate(segmented)
        reported = " ".join(done.output.split())
        assert done.exit_code == 1
        assert "failed: 0.nii: The grids of segmentation of the result and truth differ" in reported
        assert "missing: 1.nii: no segmentation of the truth matches it" in reported
        assert "1 evaluated" in reported

    @pytest.mark.usefixtures("without_ms_ssim")
    def test_two_files_are_compared_whatever_their_names_are(self, segmented: World) -> None:
        root = segmented.root
        for of in ("results", "truth"):
            (root / f"segmented-{of}" / "1.nii").rename(root / f"{of}-labels.nii")
        words = ["evaluate", root / "results" / "1.nii", "--truth", root / "truth" / "1.nii"]
        words += ["--segmentations", root / "results-labels.nii", root / "truth-labels.nii"]
        done = CliRunner().invoke(app, [*map(str, words)])
        assert done.exit_code == 0, done.output
        assert ["1", "1", "0.8333", "1.00"] in [line.split() for line in done.stdout.splitlines()]
