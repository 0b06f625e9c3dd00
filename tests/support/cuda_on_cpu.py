"""Own kernels compiled for the CPU, a thread for each lane: slow, but without a card."""

import ctypes
import re
import subprocess
from pathlib import Path

from cuda_cyclegan.engine.compiler.launches import launch as launching
from cuda_cyclegan.engine.compiler.steps import ELEMENTS
from cuda_cyclegan.engine.options import Precision

FOLDER = Path(__file__).parents[2] / "engine" / "cuda" / "kernels"
HEADER = Path(__file__).with_name("cuda_on_cpu.h")
ASSEMBLY = re.compile(r'asm(?: volatile)?\s*\((?:"(?:[^"\\]|\\.)*"|[^"])*?\)\s*;', re.DOTALL)
INSTEAD = {
    "atom.add": "before = on_cpu::add(barrier, added);",
    "ld.acquire": "now = on_cpu::read(barrier);",
    "cp.async.ca": "on_cpu::copy(target, source, is_inside);",
    "cp.async.": ";",
    "ldmatrix": "words = on_cpu::load_matrices(row);",
    "mma.sync": "on_cpu::multiply_add(sums, a, b0, b1);",
}
ENTRY = """
extern "C" void launch_{kernel}(
    const {arguments}* arguments, Place grid, Place block, int shared, bool at_once
) {{
    on_cpu::launch<{arguments}>({kernel}, *arguments, grid, block, shared, at_once);
}}
"""


class Place(ctypes.Structure):
    _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_int), ("z", ctypes.c_int))


def run(
    launch: launching.Launch, precision: Precision, folder: Path, grid: tuple[int, int, int]
) -> None:
    """Carry out a launch whose addresses are those of host memory; compiled in `folder`."""
    library = folder / f"{launch.kernel}-{precision}.so"
    if not library.exists():
        for header in FOLDER.glob("*.cuh"):
            (folder / header.name).write_text(_for_cpu(header.read_text()))
        for name in ("cuda_fp16.h", "cuda_bf16.h"):
            (folder / name).write_text("")
        source = folder / f"{launch.kernel}.cpp"
        entry = ENTRY.format(
            kernel=launch.kernel,
            arguments=type(launch.arguments).__name__.removesuffix("Arguments"),
        )
        text = (FOLDER / f"{launch.source}.cu").read_text()
        source.write_text(f'#include "{HEADER}"\n{_for_cpu(text)}\n{entry}')
        options = [
            "-std=c++20",
            "-O1",
            "-fno-strict-aliasing",
            "-shared",
            "-fPIC",
            "-pthread",
            "-w",
        ]
        defines = [f"-DELEMENT_{ELEMENTS[precision]}", "-D__CUDA_ARCH__=900", f"-I{folder}"]
        subprocess.run(["g++", *options, *defines, str(source), "-o", str(library)], check=True)
    function = getattr(ctypes.CDLL(str(library)), f"launch_{launch.kernel}")
    block = Place(*launch.block)
    function(ctypes.byref(launch.arguments), Place(*grid), block, launch.shared, launch.waits)


def _for_cpu(text: str) -> str:
    text = re.sub(r"extern __shared__ (\w+) (\w+)\[\];", r"\1* \2 = on_cpu::shared<\1>();", text)
    return ASSEMBLY.sub(lambda found: _instead(found[0]), text)


def _instead(assembly: str) -> str:
    return next(words for start, words in INSTEAD.items() if start in assembly)
