"""Use of both generators of a pair on a driver in host memory, with a report of what each holds.

A program of its own, since a process that has met such a driver keeps it. cuDNN has no plans here,
so that every convolution is done by the custom kernels, which this driver neither loads nor runs.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.cudnn_stand_in import frontend
from support.generator_in_memory import run_window
from support.model_pair import random_model
from support.nvrtc_stand_in import replace_nvrtc

from cuda_cyclegan.engine.devices import Device, with_half_the_memory
from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.engine.options import CudaLimits
from cuda_cyclegan.pipelines.calibration import opened_translation
from cuda_cyclegan.pipelines.settings import TranslateOptions


def main() -> None:
    """Arguments: a folder. Prints what was found."""
    sys.modules["cudnn"] = frontend()
    from cuda_cyclegan.engine.cuda.driver import Context
    from cuda_cyclegan.engine.cuda.patches.patch_generator import CudaGenerator

    replace_nvrtc()
    folder = Path(sys.argv[1])
    forth = load_model(random_model(folder / "a.safetensors"))
    back = load_model(random_model(folder / "b.safetensors", "T2", "T1", 1))
    options = TranslateOptions(patch=(16, 16, 16), precision="fp16").resolved()
    card = Device("cuda", "fp16", ("fp16",), limits=CudaLimits(vram=int(sys.argv[2]), batch=2))
    found: dict[str, object] = {"half": with_half_the_memory(card).limits.vram}
    found["of all"] = with_half_the_memory(replace(card, limits=CudaLimits())).limits.vram
    with Context(0) as context:
        free = context.memory[0]

        def held(generator: object) -> int:
            assert isinstance(generator, CudaGenerator)
            run_window(generator)
            return generator.held

        with opened_translation(forth, back, card, options) as both:
            generators = both.generator, both.back_translator.generator
            found["held"] = [one.do(held, "fp16").result for one in generators]
            found["again"] = [one.do(held, "fp16").result for one in generators]
            found["both"] = free - context.memory[0]
        found["closed"] = free - context.memory[0]
        tight = replace(card, limits=CudaLimits(vram=2 << 10))
        with pytest.raises(DeviceMemoryError):
            opened_translation(forth, back, tight, options).__enter__()
        found["refused"] = free - context.memory[0]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
