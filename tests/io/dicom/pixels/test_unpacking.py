"""Isolation of decoders: the effect of a frame stays in the decoder's process."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import imagecodecs as _imagecodecs
import numpy as np
import pydicom as _pydicom
import pytest
from pydicom.encaps import encapsulate
from pydicom.uid import JPEGLSLossless
from support.dicom_phantoms import Phantom
from support.processes import processes_left, runs, started
from support.waiting import ENOUGH, eventually

from cuda_cyclegan.io.dicom.pixels import unpacking
from cuda_cyclegan.io.dicom.pixels.decoding import decode
from cuda_cyclegan.io.dicom.pixels.unpacking import (
    Codestream,
    FrameUnpacker,
    UnpackingError,
    UnpackingTimeError,
    codestream_in,
)
from cuda_cyclegan.io.errors import UnreadableScanError

imagecodecs: Any = _imagecodecs
pydicom: Any = _pydicom
pytestmark = pytest.mark.process
PIXELS = np.arange(64 * 48, dtype=np.uint16).reshape(64, 48)
FRAME = codestream_in(imagecodecs.jpegls_encode(PIXELS), "jpeg-ls")

DECODERS = """
import os
import signal
import time

import numpy


def jpegls_decode(packed):
    what, _, place = bytes(packed).decode().partition(" ")
    match what:
        case "sound":
            return numpy.full((4, 5), 7, numpy.uint8)
        case "hang":
            while True:
                pass
        case "sleep":
            time.sleep(600)
        case "read":
            with open(place) as pipe:
                pipe.readline()
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "crash-once" if not os.path.exists(place):
            open(place, "x").close()
            os.kill(os.getpid(), signal.SIGSEGV)
        case "vast":
            return numpy.ones((1 << 31,), numpy.uint8).sum()
        case "other-extents":
            return numpy.zeros((400, 500), numpy.uint8)
        case "colour":
            return numpy.zeros((4, 5, 3), numpy.uint8)
        case "float":
            return numpy.zeros((4, 5), numpy.float64)
        case "print":
            os.write(1, b"printed")
            os.write(2, b"printed")
    return numpy.full((4, 5), 8, numpy.uint8)
"""
"""Stand-in for effects that no known frame has on sound decoders."""


@pytest.fixture
def bad_decoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imagecodecs.py").write_text(DECODERS)
    monkeypatch.syspath_prepend(tmp_path)


def frame(what: str) -> Codestream:
    return Codestream("jpeg-ls", memoryview(what.encode()), 4, 5, 8)


def test_frames_are_unpacked_in_one_process_that_ends_with_the_block() -> None:
    before = processes_left()
    with FrameUnpacker() as unpack:
        assert processes_left() == before, "it starts with the first frame"
        for _ in range(3):
            np.testing.assert_array_equal(unpack(FRAME), PIXELS)
            assert len(processes_left()) == len(before) + 1
    assert processes_left() == before


@pytest.mark.usefixtures("bad_decoders")
@pytest.mark.parametrize("what", ["crash", "vast", "other-extents", "colour", "float"])
def test_a_frame_that_breaks_its_decoder_is_refused_and_the_next_one_is_not(what: str) -> None:
    with FrameUnpacker() as unpack:
        assert unpack(frame("sound")).tolist() == [[7] * 5] * 4
        with pytest.raises(UnpackingError, match="its decoder"):
            unpack(frame(what))
        assert unpack(frame("sound")).tolist() == [[7] * 5] * 4


@pytest.mark.usefixtures("bad_decoders")
def test_output_of_a_decoder_is_no_answer() -> None:
    with FrameUnpacker() as unpack:
        assert unpack(frame("print")).tolist() == [[8] * 5] * 4


@pytest.mark.usefixtures("bad_decoders")
def test_a_decoder_that_somebody_else_ended_has_another_go(tmp_path: Path) -> None:
    with FrameUnpacker() as unpack:
        assert unpack(frame(f"crash-once {tmp_path / 'mark'}")).tolist() == [[8] * 5] * 4


@pytest.mark.usefixtures("bad_decoders")
def test_a_decoder_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "_SECONDS", 0.3)
    with FrameUnpacker() as unpack:
        with pytest.raises(UnpackingTimeError):
            unpack(frame("hang"))
        assert unpack(frame("sound")).tolist() == [[7] * 5] * 4


@pytest.mark.usefixtures("bad_decoders")
def test_a_decoder_that_waits_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "_MOST_WAITING", 0.5)
    with FrameUnpacker() as unpack, pytest.raises(UnpackingTimeError):
        unpack(frame("sleep"))


@pytest.mark.usefixtures("bad_decoders")
def test_time_while_this_program_is_stopped_is_not_taken_for_its_decoders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder of a program that goes on after Ctrl-Z may wait to be read, or for a frame."""
    looks, hours = threading.Semaphore(0), iter(range(0, 1 << 40, 3600))

    class Looked(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            looks.release()
            return super().wait(timeout)

    def wait_for_looks() -> None:
        assert all(looks.acquire(timeout=ENOUGH) for _ in range(5))

    monkeypatch.setattr(unpacking, "_WATCH_SECONDS", 0.01)
    monkeypatch.setattr(time, "monotonic", lambda: next(hours))
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)
    with ThreadPoolExecutor(1) as threads, FrameUnpacker() as unpack:
        unpack._is_over = Looked()
        unpack(frame("sound"))
        started = processes_left()
        wait_for_looks()
        assert processes_left() == started
        unpacked = threads.submit(unpack, frame(f"read {tmp_path / 'pipe'}"))
        wait_for_looks()
        os.write(pipe, b"\n")
        assert unpacked.result(ENOUGH).tolist() == [[8] * 5] * 4
        assert processes_left() == started
    os.close(pipe)


def test_decoders_that_do_not_load_are_not_the_scan_s_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imagecodecs.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    path = replace(Phantom(), slices=1, rows=64, columns=48).write(tmp_path / "in")[0]
    data = pydicom.dcmread(path)
    data.PixelData = encapsulate([bytes(FRAME.packed)])
    data["PixelData"].is_undefined_length = True
    data.file_meta.TransferSyntaxUID = JPEGLSLossless
    reported = "cannot be decompressed: the decoder process does not start"
    with FrameUnpacker() as unpack, pytest.raises(UnreadableScanError, match=reported):
        decode(data, path, 0, unpack)


def test_a_script_s_folder_may_hold_any_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python finds modules there first; those of its own library are loaded by then."""
    for name in ("nt", "select", "struct", "pathlib", "contextlib"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    with FrameUnpacker() as unpack:
        np.testing.assert_array_equal(unpack(FRAME), PIXELS)


def test_stopping_the_program_does_not_stop_a_decoder() -> None:
    """A service manager's signal reaches all processes, and a batch ends with its studies."""
    with FrameUnpacker() as unpack:
        unpack(FRAME)
        [child] = processes_left()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(child, number)
        np.testing.assert_array_equal(unpack(FRAME), PIXELS)
        assert processes_left() == [child]


def test_threads_have_decoders_of_their_own() -> None:
    everywhere = threading.Barrier(3)

    def work(_: int) -> bool:
        with FrameUnpacker() as unpack:
            everywhere.wait(ENOUGH)
            return all(np.array_equal(unpack(FRAME), PIXELS) for _ in range(5))

    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(work, range(3)))


def in_a_worker(_: int) -> bool:
    with FrameUnpacker() as unpack:
        return np.array_equal(unpack(FRAME), PIXELS)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes_have_decoders_of_their_own(method: str) -> None:
    context = multiprocessing.get_context(method)
    with FrameUnpacker() as unpack:
        assert np.array_equal(unpack(FRAME), PIXELS)
        with ProcessPoolExecutor(2, context) as workers:
            assert all(workers.map(in_a_worker, range(2)))
        assert np.array_equal(unpack(FRAME), PIXELS)
    if method == "spawn":  # it left a process that keeps track of semaphores
        resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


OWNER = """
import os
import sys
import time

sys.path.insert(0, {folder!r})
from cuda_cyclegan.io.dicom.pixels import frame_codecs
from cuda_cyclegan.io.dicom.pixels.unpacking import Codestream, FrameUnpacker

with FrameUnpacker() as unpack:
    unpack(Codestream("jpeg-ls", memoryview(b"sound"), 4, 5, 8))
    print(unpack._process.pid)
    if {forks}:
        sibling = os.fork()
        if not sibling:
            time.sleep(600)
        print(sibling)
    print("ready", flush=True)
    if {hangs}:
        unpack(Codestream("jpeg-ls", memoryview(b"hang"), 4, 5, 8))
    time.sleep(600)
"""


@pytest.mark.usefixtures("bad_decoders")
@pytest.mark.parametrize("while_it", ["waits", "works", "waits and a sibling lives"])
def test_a_decoder_ends_with_a_program_that_is_killed(tmp_path: Path, while_it: str) -> None:
    script = textwrap.dedent(OWNER).format(
        folder=str(tmp_path), forks="sibling" in while_it, hangs=while_it == "works"
    )
    with started([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as owner:
        lines = iter(owner.stdout.readline, "ready\n")
        decoder, *siblings = [int(line) for line in lines]
        owner.kill()
        owner.wait()
        eventually(lambda: not runs(decoder))
        for sibling in siblings:
            os.kill(sibling, signal.SIGKILL)
