"""Truths that are no truth: results, and the scans that were translated."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.batch_world import identity_model, scan, tiny_model
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.pipelines.results import manifest
from cuda_cyclegan.pipelines.results.record_folder import NAME, found_record


@dataclass(frozen=True)
class Batch:
    """Scans and the results of a batch."""

    root: Path

    @property
    def scans(self) -> Path:
        return self.root / "scans"

    @property
    def results(self) -> Path:
        return self.root / "results"

    def translate(self, model: Path, results: str = "results") -> "Batch":
        asked = ["translate", self.scans, "--model", model, "--output", self.root / results]
        done = CliRunner().invoke(app, [*map(str, asked), "--device", "cpu"])
        assert done.exit_code == 0, done.output
        return self

    def evaluate(self, truth: Path, *options: str) -> dict[str, tuple[str | None, list[str]]]:
        """Return the reason and the notes of each study."""
        asked = ["evaluate", str(self.results), "--truth", str(truth), "--json", "-", *options]
        done = CliRunner().invoke(app, asked)
        studies = json.loads(done.stdout)["studies"]
        assert done.exit_code == any(study["reason"] is not None for study in studies)
        return {study["name"]: (study["reason"], study["notes"]) for study in studies}


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    scan(tmp_path / "scans" / "a.nii")
    scan(tmp_path / "scans" / "b.nii", 1)
    return Batch(tmp_path).translate(identity_model(tmp_path / "model.safetensors"))


def test_a_scan_of_the_batch_is_no_truth_wherever_it_is(batch: Batch) -> None:
    truth = batch.root / "truth"
    truth.mkdir()
    scan(truth / "a.nii", 7)
    shutil.copy(batch.scans / "a.nii", truth / "b.nii")
    found = batch.evaluate(truth)
    assert found["a.nii"][0] is None
    assert found["b.nii"][0] == (
        "The truth is a scan that was translated here, so the figures would show how much the "
        "network changed; give an acquired scan of the target contrast, or compare them with "
        "setting any-truth."
    )
    assert batch.evaluate(truth, "--any-truth")["b.nii"][0] is None
    assert all(reason for reason, _ in batch.evaluate(batch.scans).values())


def test_a_result_is_no_truth_of_itself_or_of_another(batch: Batch) -> None:
    for reason, _ in batch.evaluate(batch.results).values():
        assert reason
        assert reason.startswith("The truth is the result itself; ")
    truth = batch.root / "truth"
    shutil.copytree(batch.results, truth)
    shutil.copy(batch.results / "b.nii", truth / "a.nii")
    found = batch.evaluate(truth)
    assert (found["a.nii"][0] or "").startswith("The truth is another result of this batch; ")
    assert (found["b.nii"][0] or "").startswith("The truth is a copy of the result; ")


def test_results_of_another_batch_are_compared_with_a_note(batch: Batch) -> None:
    batch.translate(tiny_model(batch.root / "other.safetensors"), "other")
    for reason, notes in batch.evaluate(batch.root / "other").values():
        assert reason is None
        assert notes[0].startswith("the truth is marked as a synthetic image")


def test_a_record_that_cannot_be_read_is_noted(batch: Batch) -> None:
    record = found_record(batch.results)
    assert record
    lines = (
        (record / NAME)
        .read_text()
        .replace(f'"version": {manifest.VERSION}', f'"version": {manifest.VERSION + 1}')
    )
    (record / NAME).write_text(lines)
    truth = batch.root / "truth"
    scan(truth / "a.nii", 7)
    scan(truth / "b.nii", 8)
    for reason, notes in batch.evaluate(truth).values():
        assert reason is None
        assert any("results cannot be read, so nothing shows" in note for note in notes)
