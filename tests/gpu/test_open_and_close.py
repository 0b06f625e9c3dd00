"""A translator that is closed leaves the card as it was, however often."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from support.batch_world import tiny_model

import cuda_cyclegan as cc

MIB = 1 << 20
COUNT = 100
SCAN = np.random.default_rng(0).integers(0, 900, (20, 18, 16)).astype(np.int16)

CHILD = """
import sys
import numpy as np
import cuda_cyclegan as cc
model = cc.load_model(sys.argv[1])
scan = np.random.default_rng(0).integers(0, 900, (20, 18, 16)).astype(np.int16)
for _ in range(2):
    with cc.Translator(model, device="cuda:0") as translator:
        translator.translate(scan, np.eye(4))
print("closed", flush=True)
sys.stdin.readline()
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


def test_without_a_context_of_others_nothing_is_left(tmp_path: Path) -> None:
    """Seen from another process, while that with the closed translators lives on."""
    from cuda_cyclegan.engine.cuda.driver import Context

    model = tiny_model(tmp_path / "m.safetensors")
    places = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
    with Context(0) as context:
        before = context.memory[0]
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(model)],
            env={**os.environ, "PYTHONPATH": places},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            told = child.stdout.readline()
            left = before - context.memory[0]
            child.communicate("\n")
    assert told == "closed\n"
    assert left <= MIB
