"""4-D files, each volume of which is translated, into one 4-D result."""

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
import SimpleITK as _SimpleITK
from support.batch_world import (
    identity_model,
    mixing_model,
    scan,
    stored,
    tiny_model,
    with_card,
)
from support.dicom_phantoms import Phantom
from support.queue_world import QueueWorld
from support.result_marks import read_mark
from support.waiting import ENOUGH
from typer.testing import Result

import cuda_cyclegan as cc
from cuda_cyclegan.engine.model.intensity_maps import MinMax
from cuda_cyclegan.io.files import streams
from cuda_cyclegan.io.files.file_writers import LARGEST_LAG
from cuda_cyclegan.io.files.parts import is_part
from cuda_cyclegan.pipelines.run import host_arrays
from cuda_cyclegan.pipelines.run.host_arrays import HostArrays
from cuda_cyclegan.pipelines.run.outcomes import BatchEvents
from cuda_cyclegan.pipelines.run.pipeline import StudyPipeline

nibabel: Any = _nibabel
sitk: Any = _SimpleITK
Array = np.ndarray[Any, np.dtype[Any]]
SHAPE = (17, 16, 18)
COUNT = 3


@pytest.fixture
def world(tmp_path: Path) -> QueueWorld:
    made = QueueWorld(tmp_path)
    made.inputs.mkdir()
    return made


def series(count: int = COUNT, shape: tuple[int, int, int] = SHAPE) -> Array:
    """Noise [i, j, k, time], every volume in another range."""
    noise = np.random.default_rng(0).integers(0, 1000, (*shape, count))
    return (noise / np.arange(1, count + 1) + 10).astype(np.int16)


def over_time(voxels: Array) -> Any:
    """A NIfTI image as a scanner's series over time has it."""
    image = nibabel.Nifti1Image(voxels, np.diag([2.0, 2.0, 3.0, 1.0]))
    header = image.header
    header.set_xyzt_units("mm", "sec")
    header["pixdim"][4] = 2.5
    header["slice_code"], header["slice_end"], header["slice_duration"] = 3, SHAPE[2] - 1, 0.1
    header["toffset"] = 7
    header.set_dim_info(0, 1, 2)
    header.set_slope_inter(0.5, 3)
    return image


def done(result: Result) -> Result:
    assert result.exit_code == 0, result.output
    return result


def one_by_one(world: QueueWorld, name: str, *options: str) -> list[Any]:
    """The voxels of each volume by `--volume N`."""
    made: list[Any] = []
    for number in range(COUNT):
        done(world.command("translate", "--overwrite", "--volume", str(number), *options))
        found = nibabel.load(world.output / name)
        made.append(np.asarray(found.dataobj.get_unscaled()).copy())
        assert found.ndim == 3
    return made


@pytest.mark.parametrize(
    ("name", "inference"), [("a.nii", "patches"), ("a.nii.gz", "volume"), ("a.hdr", "patches")]
)
def test_each_volume_is_that_of_its_number(world: QueueWorld, name: str, inference: str) -> None:
    image = over_time(series())
    kind = nibabel.Nifti1Pair if name == "a.hdr" else nibabel.Nifti1Image
    kind(image.dataobj, None, image.header).to_filename(world.inputs / name)
    options = ("--inference", inference)
    expected = one_by_one(world, name, *options)
    shown = done(world.command("translate", "--overwrite", "--volume", "all", *options))
    assert "a. " not in shown.stdout
    found, source = nibabel.load(world.output / name), nibabel.load(world.inputs / name)
    np.testing.assert_array_equal(found.dataobj.get_unscaled(), np.stack(expected, -1))
    for field in source.header:
        if field not in ("cal_max", "cal_min", "descrip", "magic", "vox_offset"):
            np.testing.assert_array_equal(found.header[field], source.header[field], err_msg=field)
    assert read_mark(world.output / name)
    kept = done(world.command("translate", "--volume", "all", *options))
    assert "up to date" in kept.stdout


@pytest.mark.parametrize(
    ("name", "compressed"),
    [("a.nrrd", True), ("a.nhdr", False), ("a.mha", False), ("a.mhd", True)],
)
def test_series_of_itk_keep_their_time(world: QueueWorld, name: str, compressed: bool) -> None:
    image = sitk.GetImageFromArray(series().T, isVector=False)
    image.SetSpacing((2.0, 2.0, 3.0, 2.5))
    image.SetOrigin((-3.25, 40.5, 12.125, 7.0))
    turn = np.eye(4)
    turn[:3, :3] = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    image.SetDirection(turn.ravel().tolist())
    sitk.WriteImage(image, world.inputs / name, compressed)
    expected: list[Any] = []
    for number in range(COUNT):
        done(world.command("translate", "--overwrite", "--volume", str(number)))
        made = sitk.ReadImage(world.output / name)
        assert made.GetDimension() == 3
        expected.append(sitk.GetArrayFromImage(made))
    done(world.command("translate", "--overwrite", "--volume", "all"))
    found, source = sitk.ReadImage(world.output / name), sitk.ReadImage(world.inputs / name)
    np.testing.assert_array_equal(sitk.GetArrayFromImage(found), np.stack(expected))
    for what in ("GetSpacing", "GetOrigin", "GetDirection", "GetSize"):
        np.testing.assert_allclose(getattr(found, what)(), getattr(source, what)(), atol=1e-12)


def test_a_nrrd_keeps_what_it_says_of_time(world: QueueWorld) -> None:
    head = (
        "NRRD0005\ntype: short\ndimension: 4\nspace: left-posterior-superior\n"
        f"sizes: {' '.join(map(str, SHAPE))} {COUNT}\n"
        "space directions: (2,0,0) (0,2,0) (0,0,3) none\nspace origin: (1,2,3)\n"
        'kinds: space space space time\nspacings: nan nan nan 2.5\nunits: "" "" "" "s"\n'
        'labels: "x" "y" "z" "t"\nendian: little\nencoding: raw\nMultiVolume.FrameLabels:=0,1,2\n\n'
    )
    (world.inputs / "a.nrrd").write_bytes(head.encode() + series().tobytes(order="F"))
    done(world.command("translate", "--volume", "all"))
    made = (world.output / "a.nrrd").read_bytes()
    lines = made[: made.index(b"\n\n")].decode().splitlines()
    assert {
        "dimension: 4",
        f"sizes: {' '.join(map(str, SHAPE))} {COUNT}",
        "space directions: (2,0,0) (0,2,0) (0,0,3) none",
        "kinds: space space space time",
        "spacings: nan nan nan 2.5",
        'units: "" "" "" "s"',
        'labels: "x" "y" "z" "t"',
        "MultiVolume.FrameLabels:=0,1,2",
    } <= {*lines}


def test_components_side_by_side_are_no_series(world: QueueWorld) -> None:
    image = sitk.GetImageFromArray(series().T[0].repeat(3).reshape(*SHAPE[::-1], 3), isVector=True)
    sitk.WriteImage(image, world.inputs / "a.mha")
    refusal = "3 components per voxel, which --volume all does not support"
    for command, status in (("translate", 1), ("plan", 0), ("discover", 0)):
        refused = world.command(command, "--volume", "all")
        assert refused.exit_code == status, refused.output
        assert refusal in refused.output
        assert "In volume" not in refused.output
    done(world.command("translate", "--volume", "1"))


def test_a_nrrd_series_becomes_a_nifti_series(world: QueueWorld) -> None:
    image = sitk.GetImageFromArray(series().T, isVector=False)
    image.SetSpacing((2.0, 2.0, 3.0, 2.5))
    sitk.WriteImage(image, world.inputs / "a.mha")
    expected = one_by_one(world, "a.nii.gz", "--format", "nifti")
    done(world.command("translate", "--overwrite", "--volume", "all", "--format", "nifti"))
    found = nibabel.load(world.output / "a.nii.gz")
    np.testing.assert_array_equal(found.dataobj.get_unscaled(), np.stack(expected, -1))
    assert found.header.get_zooms() == (2.0, 2.0, 3.0, 2.5)


def test_files_of_one_volume_come_out_as_ever(world: QueueWorld) -> None:
    scan(world.inputs / "a.nii")
    scan(world.inputs / "b.nii", shape=(17, 16, 18, 1))
    done(world.command("translate"))
    before = {path.name: path.read_bytes() for path in world.output.glob("*.nii")}
    done(world.command("translate", "--overwrite", "--volume", "all"))
    assert {path.name: path.read_bytes() for path in world.output.glob("*.nii")} == before


def test_more_than_one_further_axis_is_kept(world: QueueWorld) -> None:
    voxels = np.random.default_rng(0).integers(0, 1000, (*SHAPE, 2, 1, 2)).astype(np.int16)
    stored(world.inputs / "a.nii", voxels)
    done(world.command("translate", "--volume", "3"))
    last = np.asarray(nibabel.load(world.output / "a.nii").dataobj).copy()
    done(world.command("translate", "--volume", "all"))
    found = np.asarray(nibabel.load(world.output / "a.nii").dataobj)
    assert found.shape == voxels.shape
    np.testing.assert_array_equal(found[..., 1, 0, 1], last)


def test_the_report_counts_volumes_and_the_preview_is_of_the_first(world: QueueWorld) -> None:
    over_time(series()).to_filename(world.inputs / "a.nii.gz")
    options = ("--overwrite", "--preview", "--verify", "1", "--report", "-")
    first = done(world.command("translate", "--volume", "0", *options))
    picture = (world.output / "a.nii.gz.preview.png").read_bytes()
    [alone] = json.loads(first.stdout)["studies"]
    every = done(world.command("translate", "--volume", "all", *options))
    report = json.loads(every.stdout)
    [row] = report["studies"]
    assert (row["volumes"], alone["volumes"]) == (COUNT, 1)
    assert row["voxels"] == COUNT * alone["voxels"]
    assert row["tiles"] == COUNT * alone["tiles"]
    assert row["verified"]["places"] == COUNT
    assert f"a.nii.gz, {COUNT} volumes: " in every.stderr
    assert (report["settings"]["every_volume"], report["settings"]["volume_index"]) == (True, None)
    assert (world.output / "a.nii.gz.preview.png").read_bytes() == picture
    (world.output / "a.nii.gz.preview.png").unlink()
    again = world.command("translate", "--volume", "all", "--preview")
    assert "1 preview drawn" in done(again).stdout
    assert (world.output / "a.nii.gz.preview.png").read_bytes() == picture


def test_fault_of_a_volume_fails_the_study_and_is_named(world: QueueWorld) -> None:
    voxels = series().astype(np.float32)
    voxels[0, 0, 0, 1] = np.nan
    stored(world.inputs / "a.nii", voxels)
    scan(world.inputs / "b.nii")
    refusal = f"In volume 1 of its {COUNT}: 1 of {np.prod(SHAPE)} voxels are NaN"
    planned = done(world.command("plan", "--volume", "all"))
    assert refusal in planned.stdout
    failed = world.command("translate", "--volume", "all")
    assert failed.exit_code == 1
    assert refusal in failed.stderr
    assert sorted(path.name for path in world.output.iterdir()) == ["b.nii"]
    for command in ("plan", "translate"):
        taken = done(world.command(command, "--volume", "all", "--nan-to", "5"))
        assert f"note: a.nii: volume 1: 1 of {np.prod(SHAPE)} voxels were NaN" in taken.stdout


def test_a_file_that_is_cut_off_fails_as_a_whole(world: QueueWorld) -> None:
    over_time(series()).to_filename(world.inputs / "a.nii.gz")
    content = (world.inputs / "a.nii.gz").read_bytes()
    (world.inputs / "a.nii.gz").write_bytes(content[: len(content) * 3 // 4])
    failed = world.command("translate", "--volume", "all")
    assert "a.nii.gz is truncated" in failed.stderr
    assert not [*world.output.iterdir()]


def test_bytes_after_the_packed_voxels_have_a_note(world: QueueWorld) -> None:
    over_time(series()).to_filename(world.inputs / "a.nii.gz")
    expected = one_by_one(world, "a.nii.gz")
    with (world.inputs / "a.nii.gz").open("ab") as file:
        file.write(b"something else" * 99)
    made = done(world.command("translate", "--volume", "all"))
    assert "note: a.nii.gz: volume 2: its file continues after the compressed voxels" in made.stdout
    found = nibabel.load(world.output / "a.nii.gz")
    np.testing.assert_array_equal(found.dataobj.get_unscaled(), np.stack(expected, -1))


def test_volumes_of_different_voxel_types_fit_no_file(world: QueueWorld) -> None:
    voxels = series().astype(np.float32)
    voxels[..., 1] /= 1e4
    stored(world.inputs / "a.nii", voxels)
    with_card(world.model, intensity_in=MinMax(), intensity_out=MinMax())
    failed = world.command("translate", "--volume", "all", "--output-type", "int16")
    assert failed.exit_code == 1
    assert "and the volumes before it as int16, which one file cannot hold" in failed.stderr
    assert not [*world.output.iterdir()]
    planned = done(world.command("plan", "--volume", "all", "--output-type", "int16")).stdout
    assert "a volume that needs another type fails, and float32 suits all" in planned
    other = ("--volume", "all", "--output-type", "float32")
    assert "needs another" not in done(world.command("plan", *other)).stdout
    done(world.command("translate", *other))


def test_discover_and_plan_say_the_same(world: QueueWorld) -> None:
    over_time(series()).to_filename(world.inputs / "a.nii")
    for options, refused in (((), 1), (("--volume", "all"), 0)):
        found = done(world.command("discover", *options))
        planned = done(world.command("plan", *options))
        assert found.stdout.count("--volume N, or translate all with --volume all") == refused
        assert planned.stdout.count("--volume N, or translate all with --volume all") == refused
    plan = done(world.command("plan", "--volume", "all")).stdout
    one = done(world.command("plan", "--volume", "0")).stdout
    patches = [int(text.splitlines()[2].split()[1]) for text in (plan, one)]
    assert patches[0] == COUNT * patches[1]
    assert f"note: a.nii: its {COUNT} volumes are translated one by one" in plan


def test_a_dicom_series_of_several_volumes_is_refused(world: QueueWorld) -> None:
    for time in range(2):

        def edit(data: Any, at: int, time: int = time) -> None:
            data.SOPInstanceUID = f"{data.SOPInstanceUID}.{time}"
            data.InstanceNumber = 12 * time + at + 1
            data.ContentTime = f"1010{time:02}"

        Phantom("MR", seed=time).write(world.inputs / "mr", edit, prefix=f"t{time}")
    for command in ("translate", "plan", "discover"):
        refused = world.command(command, "--volume", "all")
        assert "select one of 0 to 1 with --volume N, or save one" in refused.output


@pytest.mark.parametrize("options", [("--spread", "2"), ("--seam-score",), ("--cycle-check", "m")])
def test_measure_of_one_volume_is_refused(world: QueueWorld, options: tuple[str, ...]) -> None:
    back = tiny_model(world.folder / "m", source="T2", target="T1")
    named = [str(back) if word == "m" else word for word in options]
    for command in ("translate", "plan", "submit"):
        refused = world.command(command, "--volume", "all", *named)
        assert f"{options[0]} applies to one volume" in refused.stderr
        assert refused.exit_code == 2


@pytest.mark.parametrize("wrong", ["-1", "every", "1.5", ""])
def test_other_volumes_are_wrong_usage(world: QueueWorld, wrong: str) -> None:
    for command in ("translate", "plan", "discover"):
        refused = world.command(command, "--volume", wrong)
        assert refused.exit_code == 2
        assert "is neither a number from 0 up nor all" in refused.stderr.replace("\n", " ")


def test_names_of_one_file_have_one_result_each(world: QueueWorld) -> None:
    over_time(series()).to_filename(world.inputs / "a.nii.gz")
    (world.inputs / "b.nii.gz").hardlink_to(world.inputs / "a.nii.gz")
    made = done(world.command("translate", "--volume", "all", "--report", "-"))
    a, b = json.loads(made.stdout)["studies"]
    assert (a["volumes"], b["volumes"], b["tiles"]) == (COUNT, COUNT, 0)
    contents = [(world.output / name).read_bytes() for name in ("a.nii.gz", "b.nii.gz")]
    assert contents[0] == contents[1]
    assert nibabel.load(world.output / "b.nii.gz").shape == (*SHAPE, COUNT)
    kept = done(world.command("translate", "--volume", "all"))
    assert "2 studies in" in kept.stdout
    assert "2 up to date" in kept.stdout


def test_a_job_translates_every_volume(world: QueueWorld) -> None:
    over_time(series()).to_filename(world.inputs / "a.nii.gz")
    done(world.command("translate", "--volume", "all"))
    expected = (world.output / "a.nii.gz").read_bytes()
    (world.output / "a.nii.gz").unlink()
    world.submit("--volume", "all")
    world.work()
    assert (world.output / "a.nii.gz").read_bytes() == expected


def at_second_volume(event: cc.Event) -> bool:
    return isinstance(event, cc.TilesDone) and event.volume == 2


def test_progress_counts_volumes(world: QueueWorld) -> None:
    over_time(series()).to_filename(world.inputs / "a.nii")
    reported: list[cc.TilesDone] = []

    def handle(event: cc.Event) -> None:
        if isinstance(event, cc.TilesDone):
            reported.append(event)

    options = cc.TranslateOptions(every_volume=True)
    cc.translate_folder(
        world.inputs, world.model, world.output, device="cpu", options=options, on_event=handle
    )
    [total] = {event.total for event in reported}
    assert [event.done for event in reported if event.done == 0] == [0]
    assert {(event.volume, event.volumes) for event in reported} == {(n, COUNT) for n in (1, 2, 3)}
    dones = [event.done for event in reported]
    assert dones == sorted(dones)
    assert dones[-1] == total


def test_a_stop_leaves_nothing_of_a_series(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    over_time(series()).to_filename(world.inputs / "a.nii.gz")
    report, end, is_stopped = BatchEvents.report, StudyPipeline.stop, threading.Event()

    def waiting(self: BatchEvents, event: cc.Event) -> None:
        report(self, event)
        if at_second_volume(event):
            assert is_stopped.wait(ENOUGH), "the network went on before anybody could stop it"

    def stopped(self: StudyPipeline) -> None:
        end(self)
        is_stopped.set()

    monkeypatch.setattr(BatchEvents, "report", waiting)
    monkeypatch.setattr(StudyPipeline, "stop", stopped)

    def stop(event: cc.Event) -> None:
        if at_second_volume(event):
            raise KeyboardInterrupt

    options = cc.TranslateOptions(every_volume=True)
    with pytest.raises(KeyboardInterrupt):
        cc.translate_folder(
            world.inputs, world.model, world.output, device="cpu", options=options, on_event=stop
        )
    assert not [*world.output.iterdir()]
    done(world.command("translate", "--volume", "all"))
    assert nibabel.load(world.output / "a.nii.gz").shape == (*SHAPE, COUNT)


def test_a_disk_that_gets_full_fails_the_series_alone(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    over_time(series()).to_filename(world.inputs / "a.nii.gz")
    scan(world.inputs / "b.nii")
    write, calls = streams.write_voxels, iter(range(9))

    def full(*arguments: Any) -> None:
        if next(calls) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*arguments)

    monkeypatch.setattr(streams, "write_voxels", full)
    failed = world.command("translate", "--volume", "all")
    assert failed.exit_code == 1
    assert "failed a.nii.gz: write: " in failed.stderr
    assert "the disk is full" in failed.stderr
    assert [path.name for path in world.output.iterdir()] == ["b.nii"]


@pytest.mark.process
def test_rest_of_a_killed_series_goes_with_the_next_run(world: QueueWorld) -> None:
    over_time(series()).to_filename(world.inputs / "a.nii.gz")
    code = """
import os, sys
import cuda_cyclegan as cc
def end(event):
    if isinstance(event, cc.TilesDone) and event.volume == 2:
        os._exit(9)
cc.translate_folder(
    *sys.argv[1:], device="cpu", options=cc.TranslateOptions(every_volume=True), on_event=end
)
"""
    paths = map(str, (world.inputs, world.model, world.output))
    killed = subprocess.run([sys.executable, "-c", code, *paths], check=False)
    assert killed.returncode == 9
    [part] = world.output.iterdir()
    assert is_part(part.name)
    done(world.command("translate", "--volume", "all"))
    assert [path.name for path in world.output.iterdir()] == ["a.nii.gz"]
    assert nibabel.load(world.output / "a.nii.gz").shape == (*SHAPE, COUNT)


@pytest.mark.parametrize("name", ["a.nii", "a.nrrd"])
def test_a_long_series_takes_no_more_memory_than_a_short_one(
    world: QueueWorld, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, most = (32, 32, 32), 0
    monkeypatch.setattr(host_arrays, "GRAIN_BYTES", 1 << 12)
    identity_model(world.model)
    empty = HostArrays.empty

    def measured(self: HostArrays, *arguments: Any) -> Array:
        nonlocal most
        made = empty(self, *arguments)
        most = max(most, self.held)
        return made

    monkeypatch.setattr(HostArrays, "empty", measured)
    found: list[int] = []
    for count in (2, 40):
        voxels = np.zeros((*shape, count), np.int16)
        voxels[::2] = np.arange(1, count + 1)
        if name == "a.nrrd":
            image = sitk.GetImageFromArray(voxels.T, isVector=False)
            sitk.WriteImage(image, world.inputs / name)
        else:
            stored(world.inputs / name, voxels)
        most = 0
        options = ("--volume", "all", "--output-type", "same", "--inference", "patches")
        options = (*options, "--patch", "32,32,32")
        done(world.command("translate", "--overwrite", *options))
        found.append(most)
    # What is written waits to be hashed, and keeps its volume meanwhile.
    volume = int(np.prod(shape)) * 2
    assert found[1] <= found[0] + (LARGEST_LAG + 1) * volume
    assert found[1] < 20 * volume


def test_channels_hold_as_many_volumes_each(world: QueueWorld) -> None:
    mixing_model(world.model)
    for name, count in (("s1_T1w", 3), ("s1_T2w", 3), ("s2_T1w", 3), ("s2_T2w", 2)):
        over_time(series(count)).to_filename(world.inputs / f"{name}.nii.gz")
    refusal = "its scans contain 3 and 2 volumes, but --volume all needs equal numbers"
    for command, status in (("discover", 0), ("plan", 0), ("translate", 1)):
        options = ("--model", str(world.model)) if command == "discover" else ()
        refused = world.command(command, "--volume", "all", *options)
        assert refused.exit_code == status, refused.output
        assert refused.output.replace("\n", " ").count(refusal) >= 1
    [result] = world.output.glob("s1*")
    found = np.asarray(nibabel.load(result).dataobj.get_unscaled()).copy()
    for number in range(3):
        world.command("translate", "--overwrite", "--volume", str(number))
        alone = nibabel.load(result).dataobj.get_unscaled()
        np.testing.assert_array_equal(found[..., number], alone)


def test_a_model_of_several_results_makes_a_series_of_each(world: QueueWorld) -> None:
    mixing_model(world.model, ((1.0,), (0.5,)), ("T1",), ("CT", "PD"))
    over_time(series()).to_filename(world.inputs / "a.nii.gz")
    options = ("--output-type", "float32", "--volume")
    done(world.command("translate", *options, "1"))
    places = sorted(world.output.glob("a*"))
    assert len(places) == 2
    alone = [np.asarray(nibabel.load(place).dataobj.get_unscaled()).copy() for place in places]
    done(world.command("translate", *options, "all"))
    for place, one in zip(places, alone, strict=True):
        found = nibabel.load(place)
        assert found.shape == (*SHAPE, COUNT)
        np.testing.assert_array_equal(found.dataobj.get_unscaled()[..., 1], one)
