"""A translator that is closed leaves nothing of its own on the GPU, however often."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from support.batch_world import tiny_model

import cuda_cyclegan as cc

MIB = 1 << 20
COUNT = 100
CONTEXT = 700 * MIB
"""More than CUDA's context and the code of its libraries take."""
SCAN = np.random.default_rng(0).integers(0, 900, (20, 18, 16)).astype(np.int16)

CHILD = """
import sys
import numpy as np
import cuda_cyclegan as cc
model = cc.load_model(sys.argv[1])
scan = np.random.default_rng(0).integers(0, 900, (20, 18, 16)).astype(np.int16)
for line in sys.stdin:
    with cc.Translator(model, device="cuda:0") as translator:
        translator.translate(scan, np.eye(4))
    print("closed", flush=True)
"""


def test_a_hundred_translators_give_all_their_memory_back(tmp_path: Path) -> None:
    """Libraries that the first one loads stay with the context, which is another's here."""
    from cuda_cyclegan.engine.cuda.driver import Context

    model = cc.load_model(tiny_model(tmp_path / "m.safetensors"))
    with Context(0) as context:
        before, closed = context.memory[0], list[int]()
        for _ in range(COUNT):
            free = context.memory[0]
            with cc.Translator(model, device="cuda:0") as translator:
                translator.translate(SCAN, np.eye(4))
                assert context.memory[0] < free
            closed.append(context.memory[0])
    print("MiB that the first one leaves loaded:", (before - closed[0]) / MIB)
    assert abs(closed[0] - closed[-1]) <= MIB


def test_without_a_context_of_others_the_libraries_keep_theirs_once(tmp_path: Path) -> None:
    """Another process observes it, while that with the closed translators lives, and after it."""
    from cuda_cyclegan.engine.cuda.driver import Context

    model = tiny_model(tmp_path / "m.safetensors")
    places = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
    with Context(0) as context:
        before, left = context.memory[0], list[int]()
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(model)],
            env={**os.environ, "PYTHONPATH": places},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            for _ in range(4):
                print("again", file=child.stdin, flush=True)
                assert child.stdout.readline() == "closed\n"
                left.append(before - context.memory[0])
            child.communicate()
        ended = before - context.memory[0]
    print("MiB that stay after each:", [size / MIB for size in left])
    assert max(left) - left[0] <= MIB
    assert left[-1] <= CONTEXT
    assert ended <= MIB


def test_memory_that_is_freed_during_a_capture_does_not_end_it() -> None:
    """Garbage, for instance, may be collected by the interpreter at any call."""
    from cuda_cyclegan.engine.cuda.driver import CapturedGraph, Context, DeviceBuffer, Stream

    with Context(0), Stream() as stream, DeviceBuffer(4) as kept:
        stream.upload_now(kept.address, bytes(4))

        def queue() -> None:
            with DeviceBuffer(MIB):
                stream.fill(kept.address, 7, 4)

        with CapturedGraph(stream, queue) as graph:
            graph.launch()
            found = np.zeros(4, np.uint8)
            stream.download(found.ctypes.data, kept.address, 4)
            stream.wait()
    assert found.tolist() == [7, 7, 7, 7]
