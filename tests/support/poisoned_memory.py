"""Device memory full of NaN, so that a test sees what a run leaves unwritten."""

from itertools import pairwise
from typing import TYPE_CHECKING

from cuda_cyclegan.engine.compiler.tensors import PATCHES

if TYPE_CHECKING:
    from cuda_cyclegan.engine.cuda.patches.captured_program import Program
    from cuda_cyclegan.engine.cuda.patches.patch_generator import CudaGenerator


def poison(program: "Program") -> None:
    """Set every byte that a run must write before reading to NaN."""
    fitted = program._fitted
    kept, memory = {*fitted.lowered.constant_bytes(), PATCHES}, fitted.memory
    bounds = sorted((o, n in kept) for n, o in memory.offsets.items())
    for (start, is_kept), (end, _) in pairwise([*bounds, (memory.bytes, True)]):
        if not is_kept:
            program._stream.fill(program._base + start, 0xFF, end - start)


def poison_generator(generator: "CudaGenerator") -> None:
    """The same for a generator's program."""
    generator._gpu.context.use()
    poison(generator._program)
