"""Studies are not begun whose results a full disk would not take."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cuda_cyclegan.io.errors import DiskFullError
from cuda_cyclegan.pipelines.results import storing
from cuda_cyclegan.pipelines.results.storing import DiskSpace


class Disk:
    free = 100


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(storing, "free_bytes", lambda _: disk.free)
    return disk


@pytest.fixture
def scan(tmp_path: Path) -> Callable[..., list[Path]]:
    """A scan in files of these sizes."""

    def made(*sizes: int) -> list[Path]:
        files = [tmp_path / f"{size}-{at}" for at, size in enumerate(sizes)]
        for file, size in zip(files, sizes, strict=True):
            file.write_bytes(bytes(size))
        return files

    return made


def do_not_fit(space: DiskSpace, scan: list[Path]) -> None:
    with pytest.raises(DiskFullError, match="no room"), space.taken(scan):
        raise DiskFullError("no room")


def is_refused(space: DiskSpace, scan: list[Path]) -> bool:
    try:
        space.check(scan)
    except DiskFullError:
        return True
    return False


@pytest.mark.usefixtures("disk")
def test_scans_as_large_as_one_that_did_not_fit_are_refused(
    scan: Callable[..., list[Path]], tmp_path: Path
) -> None:
    space = DiskSpace(tmp_path)
    assert not is_refused(space, scan(5000))
    do_not_fit(space, scan(200, 100))
    assert is_refused(space, scan(300))
    assert is_refused(space, scan(5000))
    assert not is_refused(space, scan(299))
    do_not_fit(space, scan(50))
    do_not_fit(space, scan(70))
    assert is_refused(space, scan(60))
    assert not is_refused(space, scan(49))


def test_all_are_tried_again_once_there_is_more_space(
    disk: Disk, scan: Callable[..., list[Path]], tmp_path: Path
) -> None:
    space = DiskSpace(tmp_path)
    do_not_fit(space, scan(300))
    disk.free = 99
    assert is_refused(space, scan(300))
    disk.free = 101
    assert not is_refused(space, scan(300))
    disk.free = 90
    assert not is_refused(space, scan(300))


@pytest.mark.usefixtures("disk")
def test_a_scan_that_went_away_is_left_to_its_reader(
    scan: Callable[..., list[Path]], tmp_path: Path
) -> None:
    space = DiskSpace(tmp_path)
    do_not_fit(space, scan(300))
    space.check([tmp_path / "gone"])


def test_a_disk_that_was_full_for_a_moment_is_tried_again(
    disk: Disk, scan: Callable[..., list[Path]], tmp_path: Path
) -> None:
    space = DiskSpace(tmp_path)
    disk.free = 300 * 100
    do_not_fit(space, scan(300))
    assert not is_refused(space, scan(300))
