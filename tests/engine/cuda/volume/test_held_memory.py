"""Pages of the host that are to be pinned for maps."""

import errno
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from cuda_cyclegan.engine.cuda.volume import held_memory
from cuda_cyclegan.engine.cuda.volume.held_memory import (
    PINNED_BYTES,
    _large_pages,
    check_host_budget,
    parts_of,
)
from cuda_cyclegan.engine.errors import DeviceMemoryError

SIZE = 6 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of its pages")
def test_pages_are_large_where_the_system_has_such_and_not_copied_for_a_child() -> None:
    pages = _large_pages(SIZE)
    assert pages is not None
    assert pages.nbytes == SIZE
    flags = _flags_of(pages.ctypes.data)
    assert {"hg", "dc"} <= flags  # proc(5): huge page advise, do not copy area on fork
    assert "sh" not in flags  # of shared ones a system's usual setting makes no large pages


def _flags_of(address: int) -> set[str]:
    """Return the flags of the map that holds an address."""
    is_in_it = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            start, stop = (int(end, 16) for end in first.split("-"))
            is_in_it = start <= address < stop
        elif is_in_it and first == "VmFlags:":
            return set(line.split()[1:])
    raise AssertionError("no map holds the address")


def test_pages_that_cannot_be_pinned_are_given_back_before_the_driver_takes_as_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[weakref.ref[object]] = []

    def large_pages(size: int) -> object:
        pages = _large_pages(size)
        taken.append(weakref.ref(pages))
        return pages

    @contextmanager
    def buffer(size: int) -> Iterator[SimpleNamespace]:
        assert size == SIZE
        assert [pages() for pages in taken] == [None]
        yield SimpleNamespace(address=7)

    monkeypatch.setattr(held_memory, "_large_pages", large_pages)
    monkeypatch.setattr(held_memory, "_is_pinned", lambda *_: False)
    monkeypatch.setattr(held_memory, "PinnedBuffer", buffer)
    with held_memory.pinned_maps(SIZE) as address:
        assert address == 7


def test_addresses_that_a_limit_does_not_give_are_left_to_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(held_memory.mmap, "mmap", full)
    assert _large_pages(SIZE) is None


def test_no_copy_passes_the_end_of_what_was_pinned_at_once() -> None:
    begin, size = PINNED_BYTES - 5, 2 * PINNED_BYTES + 6
    assert list(parts_of(begin, size)) == [
        (begin, 5),
        (PINNED_BYTES, PINNED_BYTES),
        (2 * PINNED_BYTES, PINNED_BYTES),
        (3 * PINNED_BYTES, 1),
    ]
    assert list(parts_of(begin, 5)) == [(begin, 5)]
    assert not list(parts_of(begin, 0))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such pages")
@pytest.mark.parametrize("refused", [None, 2])
def test_memory_pinned_in_parts_is_released_in_parts(
    refused: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that refuses a part takes all by itself, in its own pages."""
    pinned: list[int] = []
    unpinned: list[int] = []

    def is_pinned(address: int, _: int) -> bool:
        if len(pinned) == refused:
            return False
        pinned.append(address)
        return True

    monkeypatch.setattr(held_memory, "PINNED_BYTES", 2 << 20)
    monkeypatch.setattr(held_memory, "_SHARE", 1 << 20)
    monkeypatch.setattr(held_memory, "_is_pinned", is_pinned)
    monkeypatch.setattr(
        held_memory, "_unpin", lambda pages, first: unpinned.append(pages.ctypes.data + first)
    )
    monkeypatch.setattr(
        held_memory, "PinnedBuffer", lambda size: nullcontext(SimpleNamespace(address=size))
    )
    with held_memory.pinned_maps(SIZE) as address:
        assert address == (pinned[0] if refused is None else SIZE)
        assert unpinned == ([] if refused is None else pinned[::-1])
        assert len(pinned) == (3 if refused is None else refused)
    assert unpinned == pinned[::-1]


def test_volume_beyond_the_space_of_the_host_is_refused_in_a_sentence() -> None:
    check_host_budget(SIZE, SIZE)
    with pytest.raises(
        DeviceMemoryError, match=r"need 6 MiB .* only 5 MiB may be pinned"
    ) as refused:
        check_host_budget(SIZE, SIZE - 1)
    assert (refused.value.wanted, refused.value.free) == (SIZE, SIZE - 1)
