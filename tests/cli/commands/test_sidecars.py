"""`--sidecar`: a JSON file beside each result, a file of the result as any other."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.batch_world import killed_before_the_record, recorded, scan, tiny_model, with_card
from support.dicom_phantoms import PATIENT, PATIENT_ID, Phantom
from support.queue_world import QueueWorld
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.io.volume import NOTICE
from cuda_cyclegan.pipelines.program import program_version
from cuda_cyclegan.pipelines.results.sidecar import DROPPED, KEPT

TOLD = {
    "SkullStripped": True,
    "BodyPartExamined": "BRAIN",
    "EchoTime": 0.003,
    "SeriesDescription": "T1 of Jane Doe",
    "Modality": "MR",
    "PatientName": "Doe^Jane",
    "PatientID": "4711",
    "PatientBirthDate": "19700101",
    "AcquisitionDateTime": "2024-02-03T10:11:12",
    "InstitutionName": "General Hospital",
    "DeviceSerialNumber": "12345",
    "Resolution": {"of": "another type"},
}


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.inputs, self.output = root / "scans", root / "results"
        self.model = tiny_model(root / "model.safetensors")
        scan(self.inputs / "a.nii.gz", 1)
        (self.inputs / "a.json").write_text(json.dumps(TOLD))

    def run(self, *options: str, command: str = "translate") -> Result:
        words = [command, self.inputs, "--model", self.model, "--output", self.output]
        return CliRunner().invoke(app, [*map(str, words), "--device", "cpu", *options])

    def row(self, *options: str) -> dict[str, Any]:
        report = self.root / "report.json"
        report.unlink(missing_ok=True)
        self.run(*options, "--report", str(report))
        [row] = json.loads(report.read_text())["studies"]
        return row

    @property
    def sidecar(self) -> Path:
        return self.output / "a.json"

    def reported(self) -> dict[str, Any]:
        return json.loads(self.sidecar.read_text())

    def names(self) -> set[str]:
        return {path.name for path in self.output.iterdir()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_none_is_written_unasked(world: World) -> None:
    assert world.row()["sidecars"] == []
    assert world.names() == {"a.nii.gz"}


def test_it_says_what_was_made_from_what_and_no_more_than_holds(world: World) -> None:
    row = world.row("--sidecar")
    reported = world.reported()
    [made] = reported.pop("GeneratedBy")
    assert reported == {
        "Description": f"{NOTICE} T2 made from T1.",
        "Sources": ["a.nii.gz"],
        "SkullStripped": True,
        "BodyPartExamined": "BRAIN",
    }
    assert (made["Name"], made["Version"]) == ("cuda-cyclegan", program_version())
    assert made["Description"].startswith("Model tiny (T1 to T2), SHA-256 ")
    text = world.sidecar.read_text()
    assert not any(word in text for word in ("Doe", "4711", "1970", "2024", "Hospital", "12345"))
    assert str(world.root) not in text
    assert row["sidecars"] == [str(world.sidecar)]
    assert row["output_content"]["files"] == 1


def test_the_page_has_the_tables() -> None:
    page = " ".join((Path(__file__).parents[3] / "docs" / "names.md").read_text("utf-8").split())
    for words, reason in DROPPED.items():
        fields = ", ".join(f"`{word}`" if word[0].isupper() else word for word in words.split(", "))
        assert f"| {fields} | {reason} |" in page
    for field, reason in KEPT.items():
        assert f"`{field}`" in page
        assert f"| {reason} |" in page


def test_no_field_is_both_kept_and_dropped() -> None:
    dropped = {word.strip() for words in DROPPED for word in words.split(",")}
    assert not dropped & KEPT.keys()


class TestResuming:
    def test_a_result_that_has_it_is_up_to_date(self, world: World) -> None:
        world.run("--sidecar")
        [*entries] = recorded(world.output)
        assert {state["name"] for state in entries[-1]["outputs"]} == {"a.nii.gz", "a.json"}
        assert world.row("--sidecar")["status"] == "up to date"
        assert len(recorded(world.output)) == len(entries)

    def test_a_result_from_before_gets_it_and_is_not_made_again(self, world: World) -> None:
        world.run()
        before = (world.output / "a.nii.gz").stat()
        planned = world.run("--sidecar", command="plan").stdout
        assert "kept, sidecar written" in planned
        assert "1 up to date, 1 sidecar to write; nothing was written" in planned
        assert world.names() == {"a.nii.gz"}
        assert world.row("--sidecar")["status"] == "up to date"
        assert world.reported()["Sources"] == ["a.nii.gz"]
        assert (world.output / "a.nii.gz").stat().st_mtime_ns == before.st_mtime_ns
        assert "sidecar" not in world.run("--sidecar", command="plan").stdout

    def test_with_a_preview_both_are_added(self, world: World) -> None:
        world.run()
        row = world.row("--sidecar", "--preview")
        assert row["preview_drawn"]
        assert world.names() == {"a.nii.gz", "a.json", "a.nii.gz.preview.png"}
        again = world.row("--sidecar", "--preview")
        assert (again["status"], again["preview_drawn"]) == ("up to date", False)
        [entry] = recorded(world.output)[-1:]
        assert {state["name"] for state in entry["outputs"]} == world.names()

    @pytest.mark.parametrize("what", ["deleted", "of the source", "of the model"])
    def test_one_that_would_be_another_now_is_written_anew(self, world: World, what: str) -> None:
        world.run("--sidecar")
        match what:
            case "deleted":
                world.sidecar.unlink()
            case "of the source":
                (world.inputs / "a.json").write_text('{"SkullStripped": false}')
            case _:
                with_card(world.model, name="better")
        row = world.row("--sidecar")
        assert (row["status"], row["due"]) == ("up to date", None)
        assert world.reported().get("SkullStripped") is (what != "of the source")
        assert ("Model better" in world.sidecar.read_text()) is (what == "of the model")

    def test_file_of_a_user_stays(self, world: World) -> None:
        world.output.mkdir()
        world.sidecar.write_text("mine")
        assert "was not written by this program" in world.row("--sidecar")["reason"]
        world.sidecar.unlink()
        world.run("--sidecar")
        world.sidecar.write_text("mine")
        assert "was changed after this program wrote it" in world.row("--sidecar")["reason"]
        assert world.row("--sidecar", "--overwrite")["status"] == "translated"
        assert world.reported()["SkullStripped"]

    def test_one_that_is_not_asked_for_stays_with_its_result_only(self, world: World) -> None:
        world.run("--sidecar")
        assert world.row()["status"] == "up to date"
        assert world.names() == {"a.nii.gz", "a.json"}
        scan(world.inputs / "a.nii.gz", 5)
        assert world.row()["status"] == "translated"
        assert world.names() == {"a.nii.gz"}

    def test_a_killed_run_leaves_nothing_that_counts_as_foreign(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with killed_before_the_record(monkeypatch):
            world.run("--sidecar")
        assert world.names() == {"a.nii.gz", "a.json"}
        assert world.row("--sidecar")["due"] == "an earlier run was stopped while writing it"


def test_no_sidecar_of_a_scan_is_replaced(world: World) -> None:
    target = world.inputs / "a.nii"
    words = ["translate", world.inputs / "a.nii.gz", "--model", world.model, "--output", target]
    done = CliRunner().invoke(app, [*map(str, words), "--sidecar", "--overwrite"])
    assert done.exit_code == 1
    assert "is itself an input" in done.stderr
    assert json.loads((world.inputs / "a.json").read_text()) == TOLD


def test_results_whose_sidecars_would_share_a_place_are_refused(world: World) -> None:
    scan(world.inputs / "a.nii", 2)
    assert "2 to translate" in world.run(command="plan").stdout
    planned = world.run("--sidecar", command="plan").stdout
    assert planned.count("its result would overwrite that of a.nii") == 2


def test_a_derived_series_has_it_beside_its_folder(world: World) -> None:
    series = Phantom("MR", slices=16, intercept=0.0)
    world.inputs = world.root / "dicom"
    series.write(world.inputs / "mr")
    row = world.row("--sidecar")
    sidecar = Path(row["output"] + ".json")
    text = sidecar.read_text()
    assert json.loads(text)["Sources"] == [Path(row["name"]).name]
    assert not any(word in text for word in (*PATIENT.split("^"), PATIENT_ID))
    assert world.row("--sidecar")["status"] == "up to date"


def test_it_states_what_of_a_series_was_not_there(world: World) -> None:
    series = Phantom("MR", slices=16, intercept=0.0)
    world.inputs = world.root / "dicom"
    series.write(world.inputs / "mr")[5].unlink()
    row = world.row("--sidecar", "--allow-uneven", "--format", "nifti")
    [sidecar] = row["sidecars"]
    assert (
        "Resampled onto an even grid because 1 of 16 slices are missing"
        in (json.loads(Path(sidecar).read_text())["Description"])
    )


def test_a_job_writes_it(tmp_path: Path) -> None:
    queue = QueueWorld(tmp_path)
    queue.scans(1)
    queue.submit()
    queue.work()
    assert {path.name for path in queue.output.iterdir()} == {"000.nii"}
    batch = queue.submit("--sidecar")
    queue.work()
    assert queue.states(batch) == ["done"]
    assert {path.name for path in queue.output.iterdir()} == {"000.nii", "000.json"}


def test_bytes_of_a_name_that_are_not_utf8_are_escaped(world: World) -> None:
    """Old archives and other systems leave such names; the page links the preview."""
    scan(world.inputs / "b\udcff.nii", 2)
    report, page = world.root / "r.json", world.root / "r.html"
    done = world.run("--sidecar", "--preview", "--report", str(report))
    assert done.exit_code == 0, done.output
    assert json.loads((world.output / "b\udcff.json").read_text())["Sources"] == ["b\udcff.nii"]
    assert "2 up to date" in world.run("--sidecar", "--preview").stdout
    done = CliRunner().invoke(app, ["report", str(report), "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert "./results/b%FF.nii.preview.png" in page.read_text()
