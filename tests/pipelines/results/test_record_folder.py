"""Place of the record of an output folder: the same by all paths to the folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_cyclegan.io.errors import WriteError
from cuda_cyclegan.pipelines.errors import OutputFolderError
from cuda_cyclegan.pipelines.results.manifest import Manifest, ManifestEntry, Recipe, load
from cuda_cyclegan.pipelines.results.record_folder import check_writable, found_record, is_inside

INSIDE = ".cuda-cyclegan"


def entry(output: str) -> ManifestEntry:
    return ManifestEntry(output, "written", "0.1.0", Recipe("m", "s"), (), ())


def record(output: Path, name: str) -> Path:
    """Record a result; where that went."""
    with Manifest(output) as manifest:
        manifest.append(entry(name))
        return manifest.record


def test_a_new_record_is_beside_a_folder_that_holds_nothing_else(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "out"
    assert found_record(output) is None
    assert record(output, "a.nii") == output.with_name(".out.cuda-cyclegan")
    assert list(output.iterdir()) == []
    assert set(load(output)) == {"a.nii"}


@pytest.mark.parametrize("name", ["out with space", "ünïcode", ".hidden", "a.nii.gz", "x" * 250])
def test_any_name_of_a_folder_has_a_record(tmp_path: Path, name: str) -> None:
    """The longest leave no room for a longer one beside them."""
    output = tmp_path / name
    assert is_inside(record(output, "a.nii")) == (len(name) == 250)
    assert set(load(output)) == {"a.nii"}


def test_every_way_to_a_folder_meets_its_lock_and_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, other, link = tmp_path / "out", tmp_path / "other", tmp_path / "linked" / "out"
    output.mkdir()
    other.mkdir()
    link.parent.symlink_to(tmp_path)
    by_name = tmp_path / "latest"
    by_name.symlink_to("out")
    monkeypatch.chdir(other)
    ways = [output, Path("../out"), other / ".." / "out", by_name, link, Path("../latest/.")]
    for number, way in enumerate(ways):
        with Manifest(way) as manifest:
            manifest.append(entry(f"{number}.nii"))
            for second in ways:
                with pytest.raises(OutputFolderError, match="Another run"):
                    Manifest(second).__enter__()
    assert len(load(output)) == len(ways)
    monkeypatch.chdir(output)
    assert load(Path()) == load(output)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [".out.cuda-cyclegan", "latest", "linked", "other", "out"]


def test_a_record_that_is_inside_stays_there(tmp_path: Path) -> None:
    output = tmp_path / "out"
    (output / INSIDE).mkdir(parents=True)
    assert record(output, "a.nii") == output / INSIDE
    assert record(output, "b.nii") == output / INSIDE
    assert set(load(output)) == {"a.nii", "b.nii"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_record_that_is_taken_out_by_its_owner_is_found_beside(tmp_path: Path) -> None:
    output = tmp_path / "out"
    (output / INSIDE).mkdir(parents=True)
    record(output, "a.nii")
    (output / INSIDE).rename(tmp_path / ".out.cuda-cyclegan")
    assert set(load(output)) == {"a.nii"}


RECORD = """
import pathlib, sys
from cuda_cyclegan.pipelines.results.manifest import Manifest, load
with Manifest(pathlib.Path(sys.argv[1])) as manifest:
    print(manifest.record)
assert load(pathlib.Path(sys.argv[1])) == {}
"""


def told_by(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("this user may not mount anything")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("mounted", ["--bind '{root}/real'", "-t tmpfs none"])
def test_the_record_of_a_folder_that_is_mounted_by_itself_is_inside(
    tmp_path: Path, mounted: str
) -> None:
    """A volume in a container may be a folder of the same file system."""
    output = tmp_path / "my out"
    output.mkdir()
    (tmp_path / "real").mkdir()
    mount = f"mount {mounted.format(root=tmp_path)} '{output}' && exec \"$@\""
    words = [sys.executable, "-c", RECORD, str(output)]
    reported = told_by("unshare", "--mount", "sh", "-c", mount, "sh", *words)
    assert reported == str(output / INSIDE)


def test_a_record_beside_a_mount_point_is_not_that_of_what_is_mounted(tmp_path: Path) -> None:
    output = tmp_path / "out"
    record(output, "a.nii")
    mount = f"mount -t tmpfs none '{output}' && exec \"$@\""
    words = [sys.executable, "-c", RECORD, str(output)]
    reported = told_by("unshare", "--mount", "sh", "-c", mount, "sh", *words)
    assert reported == str(output / INSIDE)
    assert set(load(output)) == {"a.nii"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_the_record_is_inside_where_the_parent_cannot_be_written(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    for folder in (*tmp_path.parents[:3], tmp_path):
        folder.chmod(folder.stat().st_mode | 0o055)
    tmp_path.chmod(0o555)
    words = [sys.executable, "-c", RECORD, str(output)]
    reported = told_by("setpriv", "--bounding-set=-dac_override,-dac_read_search", *words)
    assert reported == str(output / INSIDE)


def test_a_folder_without_a_parent_has_its_record_inside() -> None:
    assert found_record(Path("/")) in (None, Path("/") / INSIDE)


class TestPlace:
    @pytest.mark.parametrize("what", ["out", ".out.cuda-cyclegan"])
    @pytest.mark.parametrize("how", ["moved", "removed", "replaced"])
    def test_a_folder_or_record_that_goes_away_is_noticed(
        self, tmp_path: Path, what: str, how: str
    ) -> None:
        with Manifest(tmp_path / "out") as manifest:
            manifest.place.check()
            (tmp_path / what).rename(tmp_path / "moved")
            if how == "replaced":
                (tmp_path / what).mkdir()
                (tmp_path / what / "manifest.jsonl").touch()
            with pytest.raises(WriteError, match=r"moved or removed during the run"):
                manifest.place.check()

    def test_a_link_that_leads_elsewhere_meanwhile_is_noticed(self, tmp_path: Path) -> None:
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
        latest = tmp_path / "latest"
        latest.symlink_to("first")
        with Manifest(latest) as manifest:
            manifest.place.check()
            latest.unlink()
            latest.symlink_to("second")
            with pytest.raises(WriteError, match="moved or removed"):
                manifest.place.check()


def test_a_folder_that_lets_no_open_file_be_removed_is_refused_and_stays_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FUSE does so if names cannot be changed: bindfs --rename-deny."""
    opened, unlink = set[str](), os.unlink

    def refused_once(path: str, **at: int) -> None:
        if path not in opened:
            opened.add(path)
            raise PermissionError(1, "Operation not permitted", path)
        unlink(path, **at)

    monkeypatch.setattr("tempfile._O_TMPFILE_WORKS", False)
    monkeypatch.setattr("os.unlink", lambda path, **at: refused_once(os.fspath(path), **at))
    with pytest.raises(PermissionError):
        check_writable(tmp_path)
    assert len(opened) == 1
    assert list(tmp_path.iterdir()) == []
