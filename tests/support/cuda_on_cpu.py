"""Own kernels compiled for the CPU, where lanes take turns: slow, but without a card."""

import ctypes
import os
import re
import shutil
import subprocess
from fcntl import LOCK_EX, flock
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import pytest
from support.kernel_structures import STRUCTURES

from cuda_cyclegan.engine.compiler.convolution import Convolution
from cuda_cyclegan.engine.compiler.launches import checks
from cuda_cyclegan.engine.compiler.launches import launch as launching
from cuda_cyclegan.engine.compiler.tensors import ELEMENTS
from cuda_cyclegan.engine.options import Precision

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

FOLDER = Path(__file__).parents[2] / "engine" / "cuda" / "kernels"
HEADER = Path(__file__).with_name("cuda_on_cpu.h")
ASSEMBLY = re.compile(r'asm(?: volatile)?\s*\((?:"(?:[^"\\]|\\.)*"|[^"])*?\)\s*;', re.DOTALL)
INSTEAD = {
    "atom.inc": "before = atomicInc(counter, last);",
    "ld.acquire": "now = on_cpu::read(counter);",
    "cp.async.bulk": "memcpy(target, source, bytes); on_cpu::arrive(barrier);",
    "mbarrier.init": "on_cpu::init(barrier, count);",
    "mbarrier.arrive": "on_cpu::arrive(barrier);",
    "mbarrier.try_wait": "over = on_cpu::is_over(barrier, parity);",
    "cp.async.ca": "on_cpu::copy(target, source, is_inside);",
    "cp.async.cg.shared.global [%0], [%1], 16;": "memcpy(to, source, 16);",
    "cp.async.cg": "on_cpu::copy(target, source, is_inside);",
    "cp.async.": ";",
    "ldmatrix": "words = on_cpu::load_matrices(row);",
    "stmatrix": "on_cpu::store_transposed(column, words);",
    "barrier.sync": "on_cpu::wait_for_some(group + 1, GROUP);",
    "bar.sync": "on_cpu::wait_for_some(plane + 1, PARTS * 32);",
    "movmatrix": "word = on_cpu::transposed_matrix(word);",
    "wgmma.mma_async": "on_cpu::multiply_add_of_group(sums, a, b);",
    "wgmma.": ";",
    "fence.proxy": ";",
    "setmaxnreg": ";",
    "griddepcontrol": ";",
    'asm volatile(""': ";",
    "mma.sync": "on_cpu::multiply_add(sums, a, b0, b1);",
}
ENTRY = """
extern "C" void launch_{arguments}(
    void (*kernel)({arguments}), const {arguments}* arguments, Place grid, Place block, int shared,
    bool at_once
) {{
    on_cpu::launch<{arguments}>(kernel, *arguments, grid, block, shared, at_once);
}}
"""
CPU = Path("/proc/cpuinfo")
OPTIONS = (
    "-std=c++20",
    "-O1",
    # Converts ten times faster, and multiplies four doubles at once.
    *(f"-m{unit}" for unit in ("f16c", "avx2") if CPU.is_file() and f" {unit} " in CPU.read_text()),
    "-fno-strict-aliasing",
    "-fno-gnu-unique",  # static memory is each library's own
    "-shared",
    "-fPIC",
    "-w",
)
PRECOMPILED = "precompiled.h"


class Place(ctypes.Structure):
    _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_int), ("z", ctypes.c_int))


def libraries(temporary: pytest.TempPathFactory) -> Path:
    """The folder of all that is compiled in this session of tests, whichever process runs them."""
    base = temporary.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"
    folder.mkdir(exist_ok=True)
    return folder


def run(
    launch: launching.Launch, precision: Precision, folder: Path, grid: tuple[int, int, int]
) -> None:
    """Carry out a launch whose addresses are those of host memory; folder: that of libraries."""
    defines = [f"-DELEMENT_{ELEMENTS[precision]}", "-D__CUDA_ARCH__=900"]
    defines.append("-D__CUDA_ARCH_FEAT_SM90_ALL")
    if launch.in_blocks:
        defines.append("-DIN_BLOCKS")
    library = _opened(launch.source, tuple(defines), folder)
    arguments = launch.arguments
    function = library[f"launch_{type(arguments).__name__.removesuffix('Arguments')}"]
    kernel, block = ctypes.cast(library[launch.kernel], ctypes.c_void_p), Place(*launch.block)
    function(
        kernel, ctypes.byref(arguments), Place(*grid), block, launch.shared, launch.cooperative
    )


def expected_sums(
    shape: Convolution, source: Array, weight: Array, voxels: Array, folder: Path
) -> Array:
    """Sums [2, voxels, K] in double at the voxels listed, of products and of their magnitudes."""
    sums = np.full((2, len(voxels), shape.target_channels), np.nan)
    operands = source.ctypes.data, weight.ctypes.data
    launch = checks.expect(shape, operands, voxels.ctypes.data, sums.ctypes.data, len(voxels))
    run(launch, shape.precision, folder, launch.grid)
    return sums


@cache
def _opened(source: str, defines: tuple[str, ...], folder: Path) -> ctypes.PyDLL:
    """All kernels of a .cu file; one launch runs at a time."""
    library = folder / f"{source}{''.join(defines)}.so"
    with library.with_suffix(".lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not library.exists():
            _precompile(folder)
            _compile(source, defines, library)
    return ctypes.PyDLL(str(library))


def _precompile(folder: Path) -> None:
    """What each library includes, once for all."""
    header = folder / PRECOMPILED
    with header.with_suffix(".lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if header.exists():
            return
        made = folder / f"{PRECOMPILED}.gch"
        options = [option for option in OPTIONS if option != "-shared"]
        subprocess.run(
            ["g++", *options, "-x", "c++-header", str(HEADER), "-o", str(made)], check=True
        )
        shutil.copy(HEADER, header)


def _compile(source: str, defines: tuple[str, ...], library: Path) -> None:
    with TemporaryDirectory(dir=library.parent) as name:
        folder = Path(name)
        for header in FOLDER.glob("*.cuh"):
            (folder / header.name).write_text(_for_cpu(header.read_text()))
        for name in ("cuda_fp16.h", "cuda_bf16.h"):
            (folder / name).write_text("")
        text = (FOLDER / f"{source}.cu").read_text()
        taken = sorted(set(re.findall(r"\b([A-Z]\w+) p\b", text)))
        entries = "".join(ENTRY.format(arguments=name) for name in taken if name in STRUCTURES)
        whole, made = folder / f"{source}.cpp", folder / library.name
        whole.write_text(
            f'#include "{library.with_name(PRECOMPILED)}"\n{_for_cpu(text)}\n{entries}'
        )
        command = ["g++", *OPTIONS, *defines, f"-I{folder}", str(whole), "-o", str(made)]
        subprocess.run(command, check=True)
        made.rename(library)


def _for_cpu(text: str) -> str:
    text = re.sub(r"extern __shared__ (\w+) (\w+)\[\];", r"\1* \2 = on_cpu::shared<\1>();", text)
    return ASSEMBLY.sub(lambda found: _instead(found[0]), text)


def _instead(assembly: str) -> str:
    return next(words for start, words in INSTEAD.items() if start in assembly)
