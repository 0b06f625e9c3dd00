"""A folder from Python: the command's files and report, typed events, and nothing half done."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.batch_world import scan
from support.dicom_phantoms import Phantom
from support.translate_world import World

import cuda_cyclegan as cc
from cuda_cyclegan.io.files.parts import is_part
from cuda_cyclegan.pipelines.errors import OutputFolderError, SettingsError
from cuda_cyclegan.pipelines.results import storing


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    for seed, name in enumerate("abc"):
        scan(world.inputs / f"{name}.nii.gz", seed)
    return world


def translated(world: World, **options: Any) -> cc.BatchReport:
    return cc.translate_folder(
        str(world.inputs), world.model, world.output, device="cpu", **options
    )


def parts(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if is_part(path.name)]


def test_results_and_rows_are_those_of_the_command(world: World) -> None:
    (world.inputs / "bad.nii").write_bytes(b"no scan")
    report = translated(world)
    ours = world.files()
    assert [(row.name, row.status) for row in report.studies] == [
        ("a.nii.gz", "translated"),
        ("b.nii.gz", "translated"),
        ("bad.nii", "failed"),
        ("c.nii.gz", "translated"),
    ]
    [failed] = report.failures
    assert failed.failure is not None
    assert failed.failure.kind == "unreadable"
    assert world.translate("--overwrite", "--device", "cpu").exit_code == 1
    assert world.files() == ours


def test_up_to_date_result_is_kept(world: World) -> None:
    translated(world)
    again = translated(world, options=cc.TranslateOptions(preview=False))
    assert again.count("up to date") == 3


def test_events_come_typed_and_in_order(world: World) -> None:
    events: list[cc.Event] = []
    report = translated(world, on_event=events.append)
    assert isinstance(events[0], cc.BatchStarted)
    done = [event.row for event in events if isinstance(event, cc.StudyDone)]
    assert [row.name for row in done] == ["a.nii.gz", "b.nii.gz", "c.nii.gz"]
    assert [row.status for row in done] == [row.status for row in report.studies]
    [opened] = [event.device for event in events if isinstance(event, cc.DeviceOpened)]
    assert report.device == opened


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize(
    "kind", [cc.BatchStarted, cc.DeviceOpened, cc.StudyStarted, cc.TilesDone, cc.StudyDone]
)
def test_exception_of_a_listener_ends_the_batch_cleanly(
    world: World, error: BaseException, kind: type[Any]
) -> None:
    heard: list[cc.Event] = []

    def listen(event: cc.Event) -> None:
        heard.append(event)
        if isinstance(event, kind):
            raise error

    with pytest.raises(type(error)) as raised:
        translated(world, on_event=listen)
    assert raised.value is error
    assert isinstance(heard[-1], kind), "it hears no more"
    assert parts(world.output) == []
    whole = translated(world)
    assert [row.is_done for row in whole.studies] == [True] * 3
    assert parts(world.output) == []


def test_results_under_way_are_stored_before_the_error_is_raised(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = threading.Event()
    right = storing.write

    def slow(*what: Any) -> Any:
        raised.wait()
        return right(*what)

    def listen(event: cc.Event) -> None:
        if isinstance(event, cc.TilesDone) and event.study == "b.nii.gz" and event.done:
            raised.set()
            raise ValueError("mine")

    monkeypatch.setattr(storing, "write", slow)
    with pytest.raises(ValueError, match="mine"):
        translated(world, on_event=listen)
    assert "a.nii.gz" in world.files()
    assert parts(world.output) == []


def test_series_are_picked_by_modality_and_description(world: World, tmp_path: Path) -> None:
    Phantom(modality="MR").write(tmp_path / "dicom")
    options: dict[str, Any] = {"device": "cpu"}
    none = cc.translate_folder(
        tmp_path / "dicom", world.model, tmp_path / "out", modality=["ct"], **options
    )
    assert none.studies == ()
    assert "modality" in none.skipped[0].reason
    some = cc.translate_folder(
        [tmp_path / "dicom"], world.model, tmp_path / "out", modality=["mr"], **options
    )
    assert [row.status for row in some.studies] == ["translated"]
    with pytest.raises(SettingsError, match=r"series=\( is not a regular expression"):
        translated(world, series="(")


def test_it_need_not_be_the_main_thread(world: World) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(translated, world).result().count("translated") == 3


def test_nothing_is_printed(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    translated(world)
    assert capfd.readouterr() == ("", "")


def test_error_that_stops_a_batch_is_raised_before_it_begins(world: World, tmp_path: Path) -> None:
    with pytest.raises(cc.ModelFileError):
        cc.translate_folder(world.inputs, tmp_path / "none", world.output, device="cpu")
    with pytest.raises(cc.ScanError):
        cc.translate_folder(tmp_path / "none", world.model, world.output, device="cpu")
    with pytest.raises(SettingsError):
        translated(world, options=cc.TranslateOptions(overlap=1.5))
    (tmp_path / "file").touch()
    with pytest.raises(OutputFolderError):
        cc.translate_folder(world.inputs, world.model, tmp_path / "file", device="cpu")
