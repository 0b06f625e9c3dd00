"""What the translate command writes for scripts: its report and its trace."""

import json
from pathlib import Path

import pytest
from support.batch_world import scan
from support.translate_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_trace_is_written_whole_or_complained_about(world: World, tmp_path: Path) -> None:
    scan(world.inputs / "a.nii")
    trace = tmp_path / "trace.json"
    assert world.translate("--trace", str(trace)).exit_code == 0
    events = json.loads(trace.read_text())["traceEvents"]
    stages = [event["name"] for event in events if event["ph"] == "X"]
    assert set(stages) == {"read", "prepare", "infer", "blend", "finish", "write"}

    assert world.translate("--trace", str(tmp_path / "no" / "where.json")).exit_code == 2
    assert world.translate("--trace", str(trace), "--dry-run").exit_code == 2


def test_the_report_is_a_promise_to_scripts(world: World) -> None:
    scan(world.inputs / "a.nii")
    (world.inputs / "b.nii").touch()
    (world.inputs / "c.mgz").touch()
    (world.inputs / "d.txt").touch()
    world.translate("--report", str(world.report))
    report = json.loads(world.report.read_text())
    assert report["schema"] == "cuda-cyclegan/translate-report/1"
    assert {key: kind(value) for key, value in report.items()} == {
        "schema": "str",
        "program": {"name": "str", "version": "str"},
        "libraries": dict.fromkeys(
            ["python", "numpy", "onnxruntime", "SimpleITK", "nibabel", "pydicom"], "str"
        ),
        "machine": {"host": "str", "system": "str", "cores": "int", "memory_bytes": "int"},
        "device": "str",
        "model": dict.fromkeys(["name", "path", "sha256", "established"], "str"),
        "settings": {
            "patch": "list",
            "overlap": "float",
            "blend": "str",
            "precision": "str",
            "volume_index": "NoneType",
            "keep_private": "bool",
            "sha256": "str",
        },
        "output": "str",
        "started": "str",
        "seconds": "float",
        "runs": "int",
        "interrupted": "bool",
        "use": {
            **dict.fromkeys(["wall_seconds", "busy_seconds", "computing_seconds"], "float"),
            "devices": "int",
            **dict.fromkeys(["overlap", "computing_share"], "float"),
        },
        "totals": {
            **dict.fromkeys(
                ["studies", "translated", "up_to_date", "failed", "interrupted", "not_reached"],
                "int",
            ),
            "stages": STAGES,
            "voxels": "int",
            "voxels_per_second": "float",
            "tiles": "int",
            "peak_host_bytes": "int",
            "peak_counts_from": "str",
            "worst_seam_score": "NoneType",
        },
        "studies": "list",
        "skipped": "list",
        "ignored": "int",
    }
    translated, failed = report["studies"]
    assert kind(translated) == {
        **dict.fromkeys(["name", "source", "output", "status", "peak_counts_from"], "str"),
        **dict.fromkeys(
            ["class", "reason", "failed_in", "due", "preview", "seam_score", "verified"], "NoneType"
        ),
        **dict.fromkeys(["seconds", "voxels_per_second"], "float"),
        **dict.fromkeys(["voxels", "tiles", "peak_host_bytes"], "int"),
        "stages": STAGES,
        "when": dict.fromkeys(STAGES, "list"),
        "notes": "list",
    }
    assert (failed["class"], failed["failed_in"]) == ("unreadable", "read")
    assert sum(translated["stages"].values()) <= translated["seconds"]
    [skipped] = report["skipped"]
    assert skipped["path"].endswith("c.mgz")
    assert report["ignored"] == 1


STAGES = dict.fromkeys(["read", "prepare", "infer", "blend", "finish", "write"], "float")


def kind(value: object) -> object:
    """The types of a JSON value, objects field by field."""
    if isinstance(value, dict):
        return {key: kind(item) for key, item in value.items()}
    return type(value).__name__


def test_the_report_of_a_batch_that_goes_on_is_of_the_whole_batch(world: World) -> None:
    scan(world.inputs / "a.nii")
    world.translate("--report", str(world.report))
    first = world.rows()
    scan(world.inputs / "b.nii")
    done = world.translate("--report", str(world.report))
    assert "1 translated, 1 up to date" in done.stdout
    assert {name: row["status"] for name, row in world.rows().items()} == {
        "a.nii": "translated",
        "b.nii": "translated",
    }
    assert world.rows()["a.nii"] == first["a.nii"]
    world.translate("--report", str(world.report))
    report = json.loads(world.report.read_text())
    assert (report["totals"]["translated"], report["runs"]) == (2, 3)


def test_the_report_of_another_batch_is_kept_and_nothing_is_done(world: World) -> None:
    scan(world.inputs / "a.nii")
    world.translate("--report", str(world.report))
    before = world.report.read_bytes()
    scan(world.inputs / "b.nii")
    done = world.translate("--report", str(world.report), "--overlap", "0.5")
    assert done.exit_code == 2
    assert "is the report of another batch" in done.stderr
    assert (world.report.read_bytes(), set(world.files())) == (before, {"a.nii"})
    world.report.write_text("my notes")
    assert world.translate("--report", str(world.report)).exit_code == 2
    assert world.report.read_text() == "my notes"


def test_a_report_on_standard_output_stands_there_alone(world: World) -> None:
    scan(world.inputs / "a.nii")
    done = world.translate("--report", "-")
    assert json.loads(done.stdout)["totals"]["translated"] == 1
    assert "1 study in " in done.stderr
    assert not Path("-").exists()
