"""Report and trace that the translate command writes for scripts."""

import hashlib
import json
import subprocess
from datetime import datetime
from pathlib import Path

from support.batch_world import scan
from support.dicom_phantoms import Phantom
from support.translate_world import World


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
        )
        | {name: kind(report["libraries"][name]) for name in CUDA},
        "command": "list",
        "machine": {"host": "str", "system": "str", "cores": "int", "memory_bytes": "int"},
        "device": "str",
        "model": {
            **dict.fromkeys(["name", "path", "sha256", "established"], "str"),
            "results": "NoneType",
        },
        "settings": {
            "patch": "list",
            "overlap": "float",
            "blend": "str",
            "precision": "str",
            "volume_index": "NoneType",
            "keep_private": "bool",
            "nan_to": "NoneType",
            "resample_channels": "bool",
            "inference": "str",
            "output_type": "NoneType",
            "every_volume": "bool",
            "series_description": "str",
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
        "energy": "NoneType",
        "totals": {
            **dict.fromkeys(
                ["studies", "translated", "up_to_date", "failed", "interrupted", "not_reached"],
                "int",
            ),
            "previews_drawn": "int",
            "stages": STAGES,
            "voxels": "int",
            "voxels_per_second": "float",
            "tiles": "int",
            "peak_host_bytes": "int",
            "peak_counts_from": "str",
            "worst_seam_score": "NoneType",
            **dict.fromkeys(["cycle_marked", "suspicious", "not_judged"], "int"),
            "worst_spread": "NoneType",
        },
        "studies": "list",
        "skipped": "list",
        "ignored": "int",
    }
    translated, failed = report["studies"]
    assert kind(translated) == {
        **dict.fromkeys(["name", "source", "output", "status", "peak_counts_from"], "str"),
        **dict.fromkeys(
            ["class", "reason", "failed_in", "due", "preview", "seam_score", "verified", "cycle"],
            "NoneType",
        ),
        "apportioned_joules": "NoneType",
        "measures": {
            **dict.fromkeys(["cut_off", "edges", "detail"], "float"),
            "distance": "NoneType",
            **dict.fromkeys(["match", "mirrored", "shift", "empty", "breaks", "local"], "float"),
            "values": "int",
            **dict.fromkeys(["levels", "spacing", "patterns"], "list"),
            "disagreement": "NoneType",
        },
        "suspicion": {"state": "str", "far": "float", "why": "NoneType", "findings": "list"},
        "maps": "list",
        "sidecars": "list",
        "spread": "NoneType",
        **dict.fromkeys(["seconds", "voxels_per_second"], "float"),
        **dict.fromkeys(["voxels", "tiles", "volumes", "peak_host_bytes"], "int"),
        "stages": STAGES,
        "when": dict.fromkeys(STAGES, "list"),
        "notes": "list",
        "preview_drawn": "bool",
        "source_content": {"files": "int", "bytes": "int", "sha256": "str"},
        "output_content": {"files": "int", "bytes": "int", "sha256": "str"},
    }
    assert (failed["class"], failed["failed_in"]) == ("unreadable", "read")
    assert sum(translated["stages"].values()) <= translated["seconds"]
    [skipped] = report["skipped"]
    assert skipped["path"].endswith("c.mgz")
    assert report["ignored"] == 1


CUDA = ("cuda-bindings", "cuDNN", "cuDNN frontend")
"""Components that need not be installed."""
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


def test_only_the_report_is_on_standard_output(world: World) -> None:
    scan(world.inputs / "a.nii")
    done = world.translate("--report", "-")
    assert json.loads(done.stdout)["totals"]["translated"] == 1
    assert "1 study in " in done.stderr
    assert not Path("-").exists()


def test_the_report_shows_what_was_read_and_written(world: World) -> None:
    scan(world.inputs / "a.nii.gz")
    Phantom("MR").write(world.inputs / "mr")
    (world.inputs / "b.nii").write_bytes(bytes(1000))
    for options in ((), ("--preview",), ()):  # made, with previews drawn, and all kept
        world.translate("--report", str(world.report), *options)
        rows = world.rows()
        assert rows.pop("b.nii")["output_content"] is None
        assert rows["a.nii.gz"]["source_content"] == content([world.inputs / "a.nii.gz"])
        assert rows["a.nii.gz"]["output_content"] == content([world.output / "a.nii.gz"])
        [series] = [row for name, row in rows.items() if name.startswith("mr")]
        assert series["source_content"] == content([*(world.inputs / "mr").iterdir()])
        assert series["output_content"] == content([*Path(series["output"]).iterdir()])
        world.report.unlink()


def content(files: list[Path]) -> dict[str, object]:
    """Return the content as another program reads it."""
    summed = subprocess.run(["sha256sum", *files], capture_output=True, text=True, check=True)
    digests = sorted(line[:64] for line in summed.stdout.splitlines())
    whole = "".join(f"{digest}\n" for digest in digests).encode()
    digest = digests[0] if len(files) == 1 else hashlib.sha256(whole).hexdigest()
    size = sum(file.stat().st_size for file in files)
    return {"files": len(files), "bytes": size, "sha256": digest}


def test_the_report_has_the_words_of_its_command(world: World) -> None:
    scan(world.inputs / "a.nii")
    assert world.run("--report", str(world.report), "--overlap", "0.5").returncode == 0
    found = json.loads(world.report.read_text())
    asked = world.arguments("--report", str(world.report), "--overlap", "0.5")
    assert found["command"] == ["cuda-cyclegan", "translate", *asked]
    begun = datetime.fromisoformat(found["started"])
    assert begun.utcoffset() is not None
    assert found["started"] == begun.isoformat(timespec="seconds")
