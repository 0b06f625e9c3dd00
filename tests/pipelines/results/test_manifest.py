"""The manifest survives kills, other runs and damage."""

import errno
import json
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.waiting import ENOUGH, eventually

from cuda_cyclegan.io.files import own_files
from cuda_cyclegan.io.files.own_files import RECORD
from cuda_cyclegan.pipelines.errors import NewerRecordError, OutputFolderError
from cuda_cyclegan.pipelines.results.file_states import FileState
from cuda_cyclegan.pipelines.results.manifest import (
    VERSION,
    Manifest,
    ManifestEntry,
    Recipe,
    entries_of,
    load,
)
from cuda_cyclegan.pipelines.results.record_folder import NAME, found_record, made_record
from cuda_cyclegan.pipelines.results.sharers import WORKERS

NEWER = b'{"version": %d' % (VERSION + 1)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


def entry(output: str, model: str = "m") -> ManifestEntry:
    state = FileState("a.nii", 3, 10, 20, "00")
    return ManifestEntry(output, "written", "0.1.0", Recipe(model, "s"), (state,), (state,))


def record_of(output: Path) -> Path:
    record = found_record(output)
    assert record is not None
    return record


def manifest_file(output: Path) -> Path:
    return record_of(output) / NAME


def test_entries_come_back_and_the_newest_counts(output: Path) -> None:
    with Manifest(output) as manifest:
        manifest.append(entry("a.nii", model="old"))
        manifest.append(entry("b/c.nii"))
        manifest.append(entry("a.nii", model="new"))
    assert load(output) == {"a.nii": entry("a.nii", model="new"), "b/c.nii": entry("b/c.nii")}


def test_lines_of_the_first_release_are_read(output: Path) -> None:
    with Manifest(output) as manifest:
        manifest.append(entry("a.nii"))
        file = manifest_file(output)
        line = json.loads(file.read_text())
        file.write_text(json.dumps({**line, "version": 1, "output": "old.nii"}) + "\n")
    assert load(output) == {"old.nii": entry("old.nii")}
    assert list(entries_of(output, ["b.nii"])) == []


def test_entries_are_found_by_the_name_of_the_result_or_of_its_scan(output: Path) -> None:
    renamed = replace(entry("b_T2.nii"), mirrored=("b.nii", "b_2.nii"))
    again = replace(entry("b_T2.nii", model="new"), mirrored=("elsewhere/b.nii",))
    with Manifest(output) as manifest:
        for each in (entry("a.nii"), renamed, entry("c.nii"), entry("a.nii", model="new"), again):
            manifest.append(each)
    assert list(entries_of(output, ["a.nii"])) == [entry("a.nii"), entry("a.nii", model="new")]
    assert list(entries_of(output, ["b.nii"])) == [renamed, again], "the newest line counts"
    assert list(entries_of(output, ["b_2.nii", "b_T2.nii.gz"])) == []
    with manifest_file(output).open("ab") as file:
        file.write(NEWER + b', "output": "d.nii"}\n')
    with pytest.raises(NewerRecordError):
        list(entries_of(output, ["a.nii"]))


@pytest.mark.parametrize(
    ("lost", "left"), [(1, {"a.nii", "b.nii"}), (2, {"a.nii"}), (200, {"a.nii"})]
)
def test_a_torn_last_line_is_skipped_and_the_rest_counts(
    output: Path, lost: int, left: set[str]
) -> None:
    with Manifest(output) as manifest:
        manifest.append(entry("a.nii"))
        manifest.append(entry("b.nii"))
    path = manifest_file(output)
    os.truncate(path, path.stat().st_size - lost)

    assert set(load(output)) == left
    with Manifest(output) as manifest:
        assert set(manifest.entries) == left
        manifest.append(entry("c.nii"))
    assert set(load(output)) == {*left, "c.nii"}


@pytest.mark.parametrize(
    "line", [b"garbage", b"[]", b'"x"', b'{"version": 0}', b'{"version": 1}', b"\xff\xfe", b""]
)
def test_lines_that_cannot_be_understood_are_skipped(output: Path, line: bytes) -> None:
    with Manifest(output) as manifest:
        manifest.append(entry("a.nii"))
    with manifest_file(output).open("ab") as file:
        file.write(line + b"\n")
    with Manifest(output) as manifest:
        manifest.append(entry("b.nii"))
    assert set(load(output)) == {"a.nii", "b.nii"}


def test_a_record_of_a_newer_version_is_refused_and_stays_as_it_is(output: Path) -> None:
    with Manifest(output) as manifest:
        manifest.append(entry("a.nii"))
    with manifest_file(output).open("ab") as file:
        file.write(NEWER + b', "output": "a.nii", "dose": 3}\n')
    before = manifest_file(output).read_bytes()
    reported = f"{manifest_file(output)} was written by a newer version of cuda-cyclegan"
    with pytest.raises(OutputFolderError, match=re.escape(reported)):
        load(output)
    for shared in (False, True):
        with (
            pytest.raises(OutputFolderError, match="newer version"),
            Manifest(output, shared=WORKERS if shared else None),
        ):
            pass
    assert manifest_file(output).read_bytes() == before
    assert not (record_of(output) / ASIDE).exists()


def test_a_sharer_meets_what_a_newer_version_writes_beside_it(output: Path) -> None:
    with Manifest(output, shared=WORKERS) as manifest:
        manifest.append(entry("a.nii"))
        with manifest_file(output).open("ab") as file:
            file.write(NEWER + b"}\n")
        for _ in range(2):
            with pytest.raises(OutputFolderError, match="newer version"):
                manifest.refresh()


ASIDE = "manifest.unreadable"


def test_lines_that_cannot_be_understood_are_kept_aside_and_reported_once(output: Path) -> None:
    with Manifest(output) as manifest:
        manifest.append(entry("a.nii"))
        assert manifest.remark is None
    damaged = [b"garbage", b'{"version": "2"}', b"gar\rbage", b"\xff\xfe", b"[" * 100_000]
    with manifest_file(output).open("ab") as file:
        file.writelines(line + b"\n" for line in (*damaged, damaged[0]))
    before = manifest_file(output).read_bytes()

    with Manifest(output) as manifest:
        assert manifest.kept_aside == len(damaged)
        assert manifest.remark is not None
        assert f"has damaged lines ({len(damaged)})" in manifest.remark
        manifest.append(entry("b.nii"))
    assert manifest_file(output).read_bytes().startswith(before)
    aside = (record_of(output) / ASIDE).read_bytes()
    assert aside == b"".join(line + b"\n" for line in damaged)

    for shared in (False, True):
        with Manifest(output, shared=WORKERS if shared else None) as manifest:
            assert manifest.remark is None
    assert (record_of(output) / ASIDE).read_bytes() == aside


def test_a_torn_line_is_neither_truncated_nor_lost(output: Path) -> None:
    with Manifest(output) as manifest:
        manifest.append(entry("a.nii"))
        manifest.append(entry("b.nii"))
    path = manifest_file(output)
    os.truncate(path, path.stat().st_size - 30)
    torn = path.read_bytes()
    with Manifest(output) as manifest:
        assert manifest.kept_aside == 1
        manifest.append(entry("c.nii"))
    assert path.read_bytes().startswith(torn + b"\n")
    assert (record_of(output) / ASIDE).read_bytes() == torn.splitlines()[-1] + b"\n"


@pytest.mark.parametrize("name", ["", NAME, "append.lock", ASIDE])
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("record", ["out/.cuda-cyclegan", ".out.cuda-cyclegan"])
def test_a_link_is_not_followed(tmp_path: Path, record: str, name: str, there: bool) -> None:
    """name: of what is a link; "" for the whole record."""
    output, victim, link = tmp_path / "out", tmp_path / "victim", tmp_path / record / name
    output.mkdir()
    link.parent.mkdir(exist_ok=True)
    if not name:
        victim.mkdir()
    elif there:
        victim.write_bytes(b"somebody's only copy")
    link.symlink_to(victim)
    if name == ASIDE:
        manifest_file(output).write_text("garbage\n")

    refusal = "it is a link, which is not followed"
    with (
        pytest.raises(OutputFolderError, match=refusal) as refused,
        Manifest(output, shared=WORKERS) as manifest,
    ):
        manifest.append(entry("a.nii"))
    assert str(link) in str(refused.value)
    if not name:
        assert list(victim.iterdir()) == []
    else:
        assert victim.exists() == there
        assert not there or victim.read_bytes() == b"somebody's only copy"
    if name in ("", NAME) and (there or not name):
        with pytest.raises(OutputFolderError, match=refusal):
            load(output)


def test_a_pipe_is_not_waited_for(output: Path) -> None:
    output.mkdir()
    made_record(output)
    os.mkfifo(manifest_file(output))
    with pytest.raises(OutputFolderError, match="not a regular file"):
        Manifest(output).__enter__()
    with pytest.raises(OutputFolderError, match="not a regular file"):
        load(output)


def test_a_manifest_of_another_user_is_refused_and_read(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Manifest(output) as manifest:
        manifest.append(entry("a.nii"))
    if os.geteuid():
        pytest.skip("only root can give a file away")
    os.chown(manifest_file(output), 4711, 4711)
    with pytest.raises(OutputFolderError, match=r"belongs to another user \(4711\)"):
        Manifest(output).__enter__()
    assert set(load(output)) == {"a.nii"}
    names = sorted(path.name for path in record_of(output).iterdir())
    assert names == [NAME], "the question whose new files are left one behind"

    monkeypatch.setattr(own_files, "_owner_of_new_files", lambda _: 4711)  # as a file server may
    with Manifest(output) as manifest:
        manifest.append(entry("b.nii"))
    assert set(load(output)) == {"a.nii", "b.nii"}


def test_names_outside_unicode_come_back(output: Path) -> None:
    name = os.fsdecode(b"\xff\n\x1b[31m.nii")
    with Manifest(output) as manifest:
        manifest.append(entry(name))
    assert set(load(output)) == {name}
    assert len(manifest_file(output).read_bytes().splitlines()) == 1


@pytest.mark.process
def test_a_second_run_is_refused_while_the_first_is_open(output: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from cuda_cyclegan.pipelines.results.manifest import Manifest\n"
        "with Manifest(pathlib.Path(sys.argv[1])): pass\n"
    )
    second = [sys.executable, "-c", program, str(output)]
    with Manifest(output):
        refused = subprocess.run(second, capture_output=True, text=True, check=False)
    assert "Another run is writing to" in refused.stderr
    subprocess.run(second, check=True)


def test_a_full_disk_leaves_no_torn_line(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Manifest(output) as manifest:
        manifest.append(entry("a.nii"))
        whole = manifest_file(output).read_bytes()
        write = os.write
        monkeypatch.setattr(os, "write", lambda file, line: write(file, line[:20]))
        with pytest.raises(OSError, match="No space left"):
            manifest.append(entry("b.nii"))
        assert manifest_file(output).read_bytes() == whole
        assert set(manifest.entries) == {"a.nii"}


def test_threads_share_a_flush_and_none_returns_before_its_line_is_on_disk(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first flush begins before the others append their lines, and lasts until they have."""
    flushed: list[bytes] = []
    begun = threading.Event()
    names = [f"{n}.nii" for n in range(8)]

    def flush(_: int) -> None:
        content = manifest_file(output).read_bytes()
        if not flushed:
            begun.set()
            eventually(lambda: manifest._appended == len(names))
        flushed.append(content)

    with Manifest(output) as manifest:
        monkeypatch.setattr(os, "fsync", flush)

        def append(name: str) -> bool:
            manifest.append(entry(name))
            return any(f'"{name}"'.encode() in content for content in flushed)

        with ThreadPoolExecutor(len(names)) as threads:
            first = threads.submit(append, names[0])
            assert begun.wait(ENOUGH)
            assert all(threads.map(append, names[1:]))
            assert first.result()
    assert len(load(output)) == len(names)
    assert len(flushed) == 2


@pytest.mark.parametrize("inside", [False, True])
def test_the_name_of_a_new_manifest_is_on_disk_before_its_first_line(
    output: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """A power loss would else leave results without a record."""
    output.mkdir()
    if inside:
        (output / RECORD).mkdir()
    happened, fsync, write = list[Path | str](), os.fsync, os.write

    def flush(descriptor: int) -> None:
        happened.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    def write_line(descriptor: int, line: bytes) -> int:
        happened.append("line")
        return write(descriptor, line)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "write", write_line)
    with Manifest(output) as manifest:
        manifest.append(entry("a.nii"))
    record = record_of(output)
    assert (record.parent == output) == inside
    names = [record, *([output] if inside else []), output.parent]
    assert happened == [*names, "line", record / NAME]
    happened.clear()
    with Manifest(output):
        assert happened == []  # nor does a run wait whose record is there


def test_file_kept_aside_has_its_name_on_disk(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Manifest(output) as manifest:
        manifest.append(entry("a.nii"))
    manifest_file(output).write_bytes(b"damaged\n")
    flushed, fsync = list[Path](), os.fsync

    def flush(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", flush)
    with Manifest(output):
        assert flushed == [record_of(output) / ASIDE, record_of(output)]


def test_threads_share_the_loss_of_lines_that_no_disk_took(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full file server reports this at the first flush, and not again."""
    begun, all_written, lost = (threading.Event() for _ in range(3))
    failures, real_write = list[OSError](), os.write

    def write(descriptor: int, line: bytes) -> int:
        """The second line's write ends when the flush has failed."""
        count = real_write(descriptor, line)
        if b"b.nii" in line:
            all_written.set()
            assert lost.wait(ENOUGH)
        return count

    def flush(_: int) -> None:
        if not failures:
            begun.set()
            assert all_written.wait(ENOUGH)
            failures.append(OSError(errno.EDQUOT, "Disk quota exceeded"))
            raise failures[0]

    with Manifest(output) as manifest, ThreadPoolExecutor(2) as threads:
        monkeypatch.setattr(os, "fsync", flush)
        monkeypatch.setattr(os, "write", write)
        first = threads.submit(manifest.append, entry("a.nii"))
        assert begun.wait(ENOUGH)
        second = threads.submit(manifest.append, entry("b.nii"))
        with pytest.raises(OSError, match="quota"):
            first.result()
        lost.set()
        with pytest.raises(OSError, match="quota"):
            second.result()
        manifest.append(entry("c.nii"))
    assert set(manifest.entries) == {"c.nii"}


def test_a_folder_that_cannot_be_made_is_one_sentence(output: Path) -> None:
    output.touch()
    with pytest.raises(OutputFolderError, match="choose another output folder"):
        Manifest(output / "output").__enter__()


def test_the_line_is_json_with_a_version(output: Path) -> None:
    with Manifest(output) as manifest:
        manifest.append(entry("a.nii"))
    line = json.loads(manifest_file(output).read_text())
    assert set(line) == {"version", "output", "status", "program", "recipe", "inputs", "outputs"}


class TestFileState:
    def test_an_untouched_file_is_not_read_again(self, tmp_path: Path) -> None:
        path = tmp_path / "a.nii"
        path.write_bytes(b"abc")
        state = FileState.of(path)
        assert state.again(path) is state

    def test_new_content_under_old_dates_is_noticed(self, tmp_path: Path) -> None:
        path = tmp_path / "a.nii"
        path.write_bytes(b"abc")
        before = path.stat()
        state = FileState.of(path)
        while path.stat().st_ctime_ns == before.st_ctime_ns:  # kernels keep time in steps
            path.write_bytes(b"xyz")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert state.again(path).sha256 != state.sha256

    def test_a_copy_has_the_same_hash(self, tmp_path: Path) -> None:
        path, copy = tmp_path / "a.nii", tmp_path / "b.nii"
        path.write_bytes(b"abc")
        copy.write_bytes(b"abc")
        state = FileState.of(path)
        assert state.again(copy).sha256 == state.sha256
        assert state.sha256.startswith("ba7816bf")


def test_sharers_see_each_other_and_no_run_that_wants_it_alone(output: Path) -> None:
    with Manifest(output, shared=WORKERS) as first, Manifest(output, shared=WORKERS) as second:
        first.append(entry("a.nii"))
        second.append(entry("b.nii"))
        first.refresh()
        second.refresh()
        assert set(first.entries) == set(second.entries) == {"a.nii", "b.nii"}
        with pytest.raises(OutputFolderError, match="Another run"), Manifest(output):
            pass
    with (
        Manifest(output),
        pytest.raises(OutputFolderError, match="Another run"),
        Manifest(output, shared=WORKERS),
    ):
        pass


def test_a_line_that_a_killed_sharer_tore_spoils_no_later_one(output: Path) -> None:
    with Manifest(output, shared=WORKERS) as living:
        with Manifest(output, shared=WORKERS) as killed:
            killed.append(entry("a.nii"))
        path = manifest_file(output)
        os.truncate(path, path.stat().st_size - 10)
        living.append(entry("b.nii"))
    assert set(load(output)) == {"b.nii"}
