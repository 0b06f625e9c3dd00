"""Maps beside results: where they stand, what is known of them, and who takes them for scans."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pydicom as _pydicom
import pytest
from support.batch_world import recorded, scan
from support.dicom_judges import conformance_errors
from support.dicom_phantoms import Phantom
from support.io_files import write_later
from support.numerics_models import CARD

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.discovery import Discovery, discover
from cuda_cyclegan.io.errors import WriteError
from cuda_cyclegan.io.maps import IS_MAP, MapMark, is_map_name
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Study, Volume
from cuda_cyclegan.io.writing import map_beside
from cuda_cyclegan.pipelines.errors import OccupiedError, SettingsError
from cuda_cyclegan.pipelines.results import storing
from cuda_cyclegan.pipelines.results.file_states import FileState
from cuda_cyclegan.pipelines.results.manifest import Manifest, Recipe, load
from cuda_cyclegan.pipelines.results.names import named_result
from cuda_cyclegan.pipelines.results.record_folder import found_record
from cuda_cyclegan.pipelines.results.resume import PlannedStudy, Planner
from cuda_cyclegan.pipelines.results.storing import Store
from cuda_cyclegan.pipelines.study.maps import StudyMap
from cuda_cyclegan.pipelines.study.translator import Translated

pydicom: Any = _pydicom
RECIPE = Recipe("model", "settings")
MEAN = MapMark("spread-mean", "mean of 4 flips", "4")
DEVIATION = MapMark("spread-sd", "sd of 4 flips", "4")
BOTH = (MEAN, DEVIATION)
TAKEN = Choice(fewest_slices=2)


@dataclass
class Folders:
    """Scans and an output folder, in which each result is its scan."""

    scans: Path
    output: Path

    def study(self) -> Study:
        [study] = discover([self.scans], self.output, TAKEN).studies
        return study

    def plan(self, *maps: MapMark, overwrite: bool = False) -> PlannedStudy:
        planner = Planner(self.output, load(self.output), RECIPE, overwrite, maps=maps)
        [planned] = planner.plan([self.study()])
        return planned

    def put(self, *maps: MapMark, planned: PlannedStudy | None = None) -> None:
        planned = planned or self.plan(*maps)
        assert planned.action == "translate"
        volume = read(planned.study)
        made = tuple(StudyMap(mark, as_map(volume, at)) for at, mark in enumerate(maps, 1))
        inputs = tuple(map(FileState.of, planned.study.files))
        with Manifest(self.output) as manifest:
            store = Store(manifest, RECIPE, CARD)
            store.put(planned, Translated((volume,), 1, None, None, made), inputs)

    def place(self, mark: MapMark) -> Path:
        return map_beside(self.output / self.study().name, mark.kind)


def as_map(volume: Volume, at: int) -> Volume:
    values = np.full(volume.shape, at, np.float32)
    values[0, 0, 0] = 0.5
    return volume.with_voxels(values)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    scan(tmp_path / "in" / "a.nii.gz")
    return Folders(tmp_path / "in", tmp_path / "out")


@pytest.fixture
def series(tmp_path: Path) -> Folders:
    Phantom(slices=3).write(tmp_path / "in")
    return Folders(tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("a.nii.gz", "a.map-spread-sd.nii.gz"),
        ("A.HDR", "A.map-spread-sd.HDR"),
        ("a.b.mhd", "a.b.map-spread-sd.mhd"),
        ("series-0003-12ab", "series-0003-12ab.map-spread-sd"),
        ("1.2.3", "1.2.3.map-spread-sd"),
    ],
)
def test_a_map_has_a_name_of_its_own_beside_its_result(result: str, expected: str) -> None:
    place = map_beside(Path("out") / result, "spread-sd")
    assert place == Path("out") / expected
    assert is_map_name(place.name)
    assert not is_map_name(result)


def test_no_file_and_no_folder_with_the_name_of_a_map_is_taken_for_a_scan(tmp_path: Path) -> None:
    for name in ("a.nii.gz", "a.map-spread-sd.nii.gz", "A.MAP-SPREAD-SD.NII", "a.map-later.mha"):
        scan(tmp_path / "sound.nii.gz").rename(tmp_path / name)
    folder = tmp_path / "b.map-spread-mean"
    Phantom(slices=3).write(folder)
    found = discover([tmp_path], None, TAKEN)
    assert [str(study.name) for study in found.studies] == ["a.nii.gz"]
    assert {skip.reason for skip in found.skipped} == {IS_MAP}
    assert len(found.skipped) == 4
    assert not any(skip.missed for skip in found.skipped)
    for named in (tmp_path / "a.map-spread-sd.nii.gz", folder):
        found = discover([named], None, TAKEN)
        assert (found.studies, [skip.path for skip in found.skipped]) == ((), [named])


def test_a_result_may_not_have_the_name_of_a_map(folders: Folders) -> None:
    found = Discovery((folders.study(),), ())
    with pytest.raises(SettingsError, match="the name of a map"):
        named_result(found, folders.output / "b.map-spread-sd.nii.gz")


def test_maps_are_recorded_and_kept_with_their_result(folders: Folders) -> None:
    folders.put(*BOTH)
    [volume] = [read(Study(folders.study().name, (folders.place(DEVIATION),), "nifti"))]
    assert volume.voxels.dtype == np.float32
    assert (volume.voxels[0, 0, 0], volume.voxels[-1, -1, -1]) == (0.5, 2.0)
    [entry] = load(folders.output).values()
    assert [record.kind for record in entry.maps] == ["spread-mean", "spread-sd"]
    assert {state.name for state in entry.outputs} == {"a.nii.gz"}
    for asked in (BOTH, (MEAN,), ()):
        assert folders.plan(*asked).action == "keep"


def test_a_result_without_maps_is_recorded_as_before_there_were_any(folders: Folders) -> None:
    folders.put()
    assert all("maps" not in line for line in recorded(folders.output))


def test_a_result_that_lacks_a_map_is_made_again(folders: Folders) -> None:
    folders.put(MEAN)
    planned = folders.plan(*BOTH)
    assert (planned.action, planned.reason) == ("translate", "it has no map spread-sd yet")
    folders.put(*BOTH)
    assert folders.plan(*BOTH).action == "keep"
    folders.place(MEAN).unlink()
    planned = folders.plan(*BOTH)
    assert (planned.action, planned.reason) == (
        "translate",
        "a map of its result was deleted",
    )
    assert folders.plan().action == "keep"


def test_a_map_of_other_choices_is_made_again(folders: Folders) -> None:
    folders.put(*BOTH)
    planned = folders.plan(MEAN, replace(DEVIATION, recipe="8"))
    assert (planned.action, planned.reason) == ("translate", "the settings of a map changed")


def test_a_touched_map_is_kept_with_its_new_marks(folders: Folders) -> None:
    folders.put(*BOTH)
    write_later(folders.place(MEAN), folders.place(MEAN).read_bytes())
    planned = folders.plan(*BOTH)
    assert planned.action == "keep"
    assert planned.refreshed
    assert planned.refreshed.maps[0].files == (FileState.of(folders.place(MEAN)),)


def foreign(folders: Folders) -> None:
    folders.put(MEAN)
    folders.place(DEVIATION).write_bytes(b"mine")


def changed(folders: Folders) -> None:
    folders.put(*BOTH)
    folders.place(DEVIATION).write_bytes(b"mine")


def before_any_run(folders: Folders) -> None:
    folders.output.mkdir()
    folders.place(DEVIATION).write_bytes(b"mine")


@pytest.mark.parametrize("happens", [foreign, changed, before_any_run])
def test_file_of_a_user_in_the_place_of_a_map_stays(
    folders: Folders, happens: Callable[[Folders], None]
) -> None:
    happens(folders)
    planned = folders.plan(*BOTH)
    assert planned.action == "refuse"
    assert str(folders.place(DEVIATION)) in (planned.reason or "")
    assert folders.plan(*BOTH, overwrite=True).action == "translate"


def test_a_file_that_appears_in_the_place_of_a_map_stays(folders: Folders) -> None:
    planned = folders.plan(*BOTH)
    folders.output.mkdir()
    folders.place(MEAN).write_bytes(b"mine")
    with pytest.raises(OccupiedError, match="appeared while"):
        folders.put(*BOTH, planned=planned)
    assert folders.place(MEAN).read_bytes() == b"mine"


def test_maps_that_are_not_made_again_go_with_the_result_that_they_were_about(
    folders: Folders,
) -> None:
    folders.put(*BOTH)
    folders.place(MEAN).write_bytes(b"mine")
    scan(folders.scans / "a.nii.gz", seed=1)
    planned = folders.plan()
    assert (planned.reason, planned.stale_beside) == (
        "the input changed",
        (folders.place(DEVIATION),),
    )
    folders.put(planned=planned)
    assert not folders.place(DEVIATION).exists()
    assert folders.place(MEAN).read_bytes() == b"mine"
    [entry] = load(folders.output).values()
    assert entry.maps == ()


def test_a_result_that_cannot_be_written_leaves_no_map(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = storing.write

    def write(volume: Volume, target: Path, *rest: Any) -> dict[str, str]:
        if target.name == "a.nii.gz":
            assert folders.place(DEVIATION).exists()  # so that a result never lacks its maps
            raise WriteError("The disk is full.")
        return real(volume, target, *rest)

    monkeypatch.setattr(storing, "write", write)
    with pytest.raises(WriteError):
        folders.put(*BOTH)
    assert not list(folders.output.glob("a.*"))


def test_map_of_a_killed_run_is_known_to_be_ours(
    series: Folders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, seen = storing.write, tmp_path / "seen"

    def write(volume: Volume, target: Path, *rest: Any) -> dict[str, str]:
        if target == series.place(DEVIATION):
            record = found_record(series.output)
            assert record
            shutil.copytree(series.output, seen / "output")
            shutil.copytree(record, seen / "record")
            raise WriteError("The disk is full.")
        return real(volume, target, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(storing, "write", write)
        with pytest.raises(WriteError):
            series.put(*BOTH)
    record = found_record(series.output)
    assert record
    for now, then in ((series.output, seen / "output"), (record, seen / "record")):
        shutil.rmtree(now)
        then.rename(now)
    assert series.place(MEAN).is_dir()
    planned = series.plan(*BOTH)
    assert (planned.action, planned.replaces) == ("translate", True)
    assert series.plan().stale_beside == (series.place(MEAN),)
    series.put(planned=series.plan())
    assert not series.place(MEAN).exists()


def test_a_map_of_a_series_is_a_series_of_its_own_and_reports_it(series: Folders) -> None:
    series.put(*BOTH)
    target = series.output / series.study().name
    folders = [target, series.place(MEAN), series.place(DEVIATION)]
    heads = [[pydicom.dcmread(file) for file in sorted(folder.iterdir())] for folder in folders]
    for keyword in ("SeriesInstanceUID", "SeriesNumber", "SOPInstanceUID"):
        found = [image[keyword].value for of_series in heads for image in of_series]
        assert len(set(found)) == (9 if keyword == "SOPInstanceUID" else 3)
    for keyword in ("StudyInstanceUID", "FrameOfReferenceUID", "PatientID"):
        assert len({image[keyword].value for of_series in heads for image in of_series}) == 1
    for mark, images in zip(BOTH, heads[1:], strict=True):
        for image in images:
            assert (image.Modality, image.ImageType[3]) == ("OT", "MAP")
            assert image.ImageType[4] == mark.kind.replace("-", "_").upper()
            assert image.SeriesDescription.startswith(f"Map: {mark.words}, not for diagnosis")
            assert "A map, not an image" in image.DerivationDescription
            assert (
                image.ImageComments
                == "Synthetic image made by a neural network. Not for diagnosis."
            )
    values = heads[2][0].pixel_array * heads[2][0].RescaleSlope + heads[2][0].RescaleIntercept
    assert values.max() == pytest.approx(2.0)
    assert values.min() == pytest.approx(0.5 if values[0, 0] < 1 else 2.0)


def test_maps_of_a_series_satisfy_the_standard(series: Folders) -> None:
    series.put(*BOTH)
    for mark in BOTH:
        for file in sorted(series.place(mark).iterdir()):
            assert conformance_errors(file) == set()


def test_a_map_of_a_series_has_the_same_identifiers_each_time(series: Folders) -> None:
    def identifiers() -> list[str]:
        files = sorted(series.place(MEAN).iterdir())
        return [str(pydicom.dcmread(file).SOPInstanceUID) for file in files]

    series.put(*BOTH)
    first = identifiers()
    shutil.rmtree(series.output / series.study().name)
    series.put(*BOTH)
    assert identifiers() == first
    shutil.rmtree(series.place(MEAN))
    series.put(replace(MEAN, recipe="8"), DEVIATION)
    assert not set(identifiers()) & set(first)


def test_a_map_of_a_series_is_known_wherever_it_lies(series: Folders, tmp_path: Path) -> None:
    series.put(MEAN)
    shutil.copytree(series.place(MEAN), tmp_path / "elsewhere")
    found = discover([tmp_path / "elsewhere"], None, TAKEN)
    assert found.studies == ()
    [reason] = [skip.reason for skip in found.skipped]
    assert reason.endswith(" (OT, 3 images): it is a map stored with a result")
