import json
import os
import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from support.batch_world import scan, tiny_model

from cuda_cyclegan.engine.decoding import encode_stated
from cuda_cyclegan.pipelines.errors import OutputFolderError
from cuda_cyclegan.pipelines.jobs.queue.job import StudyJob
from cuda_cyclegan.pipelines.jobs.submission import Arrivals, jobs_of
from cuda_cyclegan.pipelines.request import Request
from cuda_cyclegan.pipelines.results.file_states import FileState
from cuda_cyclegan.pipelines.results.manifest import Manifest, ManifestEntry, Recipe
from cuda_cyclegan.pipelines.results.record_folder import NAME, made_record
from cuda_cyclegan.pipelines.settings import TranslateOptions


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def job(file: Path) -> StudyJob:
    return StudyJob(
        study=file.name,
        files=(str(file),),
        output=str(file.parent / "out"),
        model="/model.safetensors",
        model_sha256="m",
        options=TranslateOptions(patch=(16, 16, 16)),
    )


def test_a_study_is_complete_when_it_has_not_changed_for_a_while(tmp_path: Path) -> None:
    clock = Clock()
    arrivals = Arrivals(30.0, clock)
    file = tmp_path / "a.nii"
    file.write_bytes(b"half")
    asked = [job(file)]
    assert arrivals.complete(asked, "m") == []
    clock.now = 29
    file.write_bytes(b"half and half")
    assert arrivals.complete(asked, "m") == []
    clock.now = 58
    assert arrivals.complete(asked, "m") == []
    clock.now = 59
    assert arrivals.complete(asked, "m") == asked
    clock.now = 200
    assert arrivals.complete(asked, "m") == asked, "the queue may not have it"
    arrivals.handed_over(asked)
    assert arrivals.complete(asked, "m") == []
    file.write_bytes(b"another scan")
    assert arrivals.complete(asked, "m") == []
    clock.now = 230
    assert arrivals.complete(asked, "m") == asked


def test_finished_study_is_not_made_again_after_a_restart(tmp_path: Path) -> None:
    old, changed = tmp_path / "old.nii", tmp_path / "changed.nii"
    with Manifest(tmp_path / "out") as manifest:
        for file in (old, changed):
            file.write_bytes(b"scan")
            state = FileState.of(file)
            manifest.append(
                ManifestEntry(file.name, "written", "1", Recipe("m", "s"), (state,), (state,))
            )
    os.utime(changed, ns=(0, 0))
    arrivals = Arrivals(0.0, Clock())
    asked = [job(old), job(changed)]
    arrivals.complete(asked, "m")
    assert arrivals.complete(asked, "m") == [asked[1]]


def test_a_study_stays_complete_until_it_is_handed_over_whatever_the_others_do(
    tmp_path: Path,
) -> None:
    """The queue may not answer, or the manifest may be unreadable for a moment."""
    asked = [job(tmp_path / name) for name in ("a.nii", "b.nii", "c.nii")]
    for each in asked:
        Path(each.files[0]).write_bytes(b"scan")
    arrivals = Arrivals(0.0, Clock())
    arrivals.complete(asked, "m")
    with Manifest(tmp_path / "out") as manifest:
        line = manifest.record / "manifest.jsonl"
    line.rename(tmp_path / "away")
    line.mkdir()
    with pytest.raises(OutputFolderError):
        arrivals.complete(asked, "m")
    line.rmdir()
    (tmp_path / "away").rename(line)
    assert arrivals.complete(asked, "m") == asked
    arrivals.handed_over(asked[:1])
    Path(asked[1].files[0]).unlink()
    assert arrivals.complete(asked, "m") == asked[2:]


def test_a_scan_of_another_name_is_not_taken_for_the_one_that_its_result_was_made_of(
    tmp_path: Path,
) -> None:
    """The scan a.nii.gz must not count as a.mha, of which out/a.nii.gz was made."""
    scans = [tmp_path / "a.mha", tmp_path / "a.nii.gz"]
    for file in scans:
        file.write_bytes(b"scan")
        os.utime(file, ns=(0, 0))
    with Manifest(tmp_path / "out") as manifest:
        state = FileState.of(scans[0])
        entry = ManifestEntry("a.nii.gz", "written", "1", Recipe("m", "s"), (state,), (state,))
        manifest.append(entry)
    for file, is_due in zip(scans, (False, True), strict=True):
        arrivals = Arrivals(0.0, Clock())
        asked = [replace(job(file), study="a.nii.gz")]
        arrivals.complete(asked, "m")
        assert arrivals.complete(asked, "m") == (asked if is_due else [])


def test_results_are_known_by_the_identity_of_their_model(tmp_path: Path) -> None:
    file = tmp_path / "a.nii"
    file.write_bytes(b"scan")
    with Manifest(tmp_path / "out") as manifest:
        state = FileState.of(file)
        manifest.append(
            ManifestEntry(file.name, "written", "1", Recipe("identity", "s"), (state,), (state,))
        )
    for model, due in (("identity", []), ("another", [job(file)])):
        arrivals = Arrivals(0.0, Clock())
        arrivals.complete([job(file)], model)
        assert arrivals.complete([job(file)], model) == due


def test_a_result_that_shows_other_words_of_its_model_is_made_again(tmp_path: Path) -> None:
    file = tmp_path / "a.nii"
    file.write_bytes(b"scan")
    made, words = Recipe("m", "s"), ("name", "T1", "T2")
    with Manifest(tmp_path / "out") as manifest:
        state = FileState.of(file)
        entry = ManifestEntry(file.name, "written", "1", made, (state,), (state,), words=words)
        manifest.append(entry)
    for now, due in ((words, []), (("name", "T1", "CT"), [job(file)])):
        arrivals = Arrivals(0.0, Clock())
        arrivals.complete([job(file)], "m", now)
        assert arrivals.complete([job(file)], "m", now) == due


def test_a_study_that_vanishes_is_skipped(tmp_path: Path) -> None:
    assert Arrivals(0.0, Clock()).complete([job(tmp_path / "gone.nii")], "m") == []


def test_a_folder_may_be_watched_for_months(tmp_path: Path) -> None:
    """Slices of a study, which may be many, are not remembered one by one."""
    slices = tuple(str(tmp_path / f"{number:04}.dcm") for number in range(200))
    for name in slices:
        Path(name).touch()
    arrivals = Arrivals(30.0, Clock())
    for number in range(20):
        arrivals.complete([replace(job(tmp_path), study=f"study-{number}", files=slices)], "m")
    remembered = len(pickle.dumps(arrivals)) / 20
    assert remembered < len(slices)


@pytest.mark.parametrize("mirrored", [(), ("another.nii",)])
def test_a_poll_holds_no_rows_of_other_studies_however_long_the_manifest(
    tmp_path: Path, mirrored: tuple[str, ...]
) -> None:
    """mirrored: with names of their own, the results are looked up by their scans as well."""
    inputs, output = tmp_path / "in", tmp_path / "out"
    file = scan(inputs / "new.nii")
    output.mkdir()
    state = FileState.of(file)
    row = ManifestEntry("ROW", "written", "1", Recipe("m", "s"), (state,), (state,))
    line = json.dumps({"version": 1, **encode_stated(replace(row, mirrored=mirrored))})
    rows = [line.replace("ROW", f"night/{number:06}.nii") + "\n" for number in range(3000)]
    (made_record(output) / NAME).write_text("".join(rows))
    request = Request((inputs,), tiny_model(tmp_path / "model.safetensors"), output)
    search, arrivals = request.cached_search(), Arrivals(0.0, Clock())

    def poll() -> list[StudyJob]:
        found = jobs_of(request, search)
        return arrivals.complete(found.jobs, found.identity, found.words)

    poll()
    tracemalloc.start()
    try:
        assert len(poll()) == 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 500 * len(rows)
