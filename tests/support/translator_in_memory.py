"""Opening and closing of a translator on a driver in host memory, with a report of what is
allocated.

A program of its own, since a process that has met such a driver keeps it. cuDNN has no plans here.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from support.batch_world import tiny_model
from support.cudnn_stand_in import frontend
from support.nvrtc_stand_in import replace_nvrtc

import cuda_cyclegan as cc
from cuda_cyclegan.engine.devices import Device
from cuda_cyclegan.pipelines import decisions

COUNT = 100


def main() -> None:
    """Arguments: a folder for the cache. Prints bytes that are held while open, and when closed."""
    sys.modules["cudnn"] = frontend()
    from cuda_cyclegan.engine.cuda.driver import Context

    replace_nvrtc()
    folder = Path(sys.argv[1])
    folder.mkdir()
    model = cc.load_model(tiny_model(folder / "m.safetensors"))
    decisions.choose_devices = lambda _, limits, __: (
        replace(Device("cuda", "fp32", ("fp32",)), limits=limits),
    )
    opened: list[int] = []
    closed: list[int] = []
    with Context(0) as context:
        free = context.memory[0]
        for _ in range(COUNT):
            with cc.Translator(model, device="cuda:0"):
                opened.append(free - context.memory[0])
            closed.append(free - context.memory[0])
    print(json.dumps({"opened": opened, "closed": closed}))


if __name__ == "__main__":
    main()
