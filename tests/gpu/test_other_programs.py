"""--yield-to-others on a real GPU: another process that takes memory, and one that computes."""

import subprocess
import sys
from contextlib import contextmanager

import pytest
from support.processes import started
from support.waiting import eventually

from cuda_cyclegan.engine.cuda.driver import Context, DeviceBuffer, Stream

MIB = 1 << 20

OTHER = """
import sys
from cuda_cyclegan.engine.cuda.driver import Context, DeviceBuffer, Stream
with Context(0), Stream() as stream, DeviceBuffer({bytes}) as buffer:
    print("ready", flush=True)
    while {busy}:
        for _ in range(50):
            stream.fill(buffer.address, 0, {bytes})
        stream.wait()
    sys.stdin.read()
"""


@contextmanager
def other_program(megabytes: int, busy: bool):
    source = OTHER.format(bytes=megabytes * MIB, busy=busy)
    command = [sys.executable, "-c", source]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process


@pytest.fixture
def watched():
    from cuda_cyclegan.pipelines.jobs.events import YieldLimits
    from cuda_cyclegan.pipelines.jobs.gpu_sharing import OtherPrograms

    others = OtherPrograms("cuda:0", YieldLimits(memory=1536 * MIB, load=20))
    if others.hindrance():
        pytest.skip(f"somebody uses the GPU: {others.hindrance()}")
    return others


def test_our_own_use_hinders_nothing(watched):
    with Context(0), Stream() as stream, DeviceBuffer(2048 * MIB) as buffer:
        stream.fill(buffer.address, 0, 2048 * MIB)
        stream.wait()
        assert watched.hindrance() is None


def test_memory_of_another_process_is_seen_and_its_end_too(watched):
    with other_program(2048, busy=False):
        assert "other programs use" in (watched.hindrance() or "")
    eventually(lambda: watched.hindrance() is None)


def test_load_of_another_process_is_seen(watched):
    with other_program(64, busy=True):
        eventually(lambda: "busy" in (watched.hindrance() or ""))
