"""The kernels' sources, translated for g++ and compiled to shared libraries."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from support.gpu_on_cpu.kept_files import kept_file

from cuda_cyclegan.engine.compiler.kernels.table import KERNELS
from cuda_cyclegan.engine.compiler.tensors import ELEMENTS
from cuda_cyclegan.engine.options import Precision

FOLDER = Path(__file__).parents[3] / "engine" / "cuda" / "kernels"
HEADER = Path(__file__).with_name("cuda.h")
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
    "barrier.sync": "on_cpu::wait_for_some(number + 1, THREADS);",
    "bar.sync": "on_cpu::wait_for_some(plane + 1, PARTS * 32);",
    "movmatrix": "word = on_cpu::transposed_matrix(word);",
    "wgmma.mma_async": "on_cpu::multiply_add_of_group(sums, a, b);",
    "wgmma.": ";",
    "fence.proxy": ";",
    "setmaxnreg": ";",
    'asm volatile(""': ";",
    "mma.sync": "on_cpu::multiply_add(sums, a, b0, b1);",
}
"""Replacements of inline assembly statements, by what they contain; the first match counts."""

ENTRY = """
extern "C" on_cpu::Outcome launch_{arguments}(
    void (*kernel)({arguments}), const {arguments}* arguments, Place grid, Place block, int shared,
    bool at_once
) {{
    return on_cpu::launch<{arguments}>(kernel, *arguments, grid, block, shared, at_once);
}}
"""
INSTANCE = 'extern "C" void {symbol}({arguments} p) {{ {instance}(p); }}'
CPU = Path("/proc/cpuinfo")
OPTIONS = (
    "-std=c++17",
    "-O1",
    # Converts ten times faster, and multiplies four doubles at once.
    *(f"-m{unit}" for unit in ("f16c", "avx2") if CPU.is_file() and f" {unit} " in CPU.read_text()),
    "-fno-strict-aliasing",
    "-fno-gnu-unique",  # static memory is each library's own
    "-shared",
    "-fPIC",
    "-w",
)


def library_of(source: str, precision: Precision, *, in_blocks: bool) -> Path:
    """Return the shared library of a .cu file, compiled if no earlier run has done so."""
    defines = [f"-DELEMENT_{ELEMENTS[precision]}", "-D__CUDA_ARCH__=900"]
    defines += ["-D__CUDA_ARCH_FEAT_SM90_ALL", *(["-DIN_BLOCKS"] if in_blocks else [])]
    command = ["g++", *OPTIONS, *defines, "-x", "c++", "-", "-o"]
    text = "\n".join([cpp_text(source), *_instances(source, precision)])

    def make(library: Path) -> None:
        subprocess.run([*command, str(library)], input=text, text=True, check=True)

    name = f"{source}-{precision}{'-in_blocks' if in_blocks else ''}.so"
    return kept_file(name, (_compiler(), *command, text), make)


@cache
def _compiler() -> str:
    """Return the compiler's name and version."""
    version = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True)
    return version.stdout


def symbol_of(source: str, kernel: str) -> str:
    """Return the name in the library of a kernel, or of an instance of a template."""
    instances = KERNELS[source].instances
    return f"instance_{instances.index(kernel)}" if kernel in instances else kernel


def _instances(source: str, precision: Precision) -> Iterator[str]:
    """Yield a function for each instance of the file's templates."""
    spec = KERNELS[source]
    for instance in spec.instances if precision in spec.precisions else ():
        template = instance.partition("<")[0]
        taken = re.search(rf"__global__ [^{{;]*?\b{template}\((\w+) p\)", cpp_text(source))
        assert taken
        yield INSTANCE.format(
            symbol=symbol_of(source, instance), arguments=taken[1], instance=instance
        )


@cache
def cpp_text(source: str) -> str:
    """Return a .cu file for g++, with all that it includes, and an entry point for each launch."""
    text = _with_headers(f"{source}.cu", set())
    taken = sorted(set(re.findall(r"__global__ [^{;]*?\b([A-Z]\w+) p\b", text)))
    entries = (ENTRY.format(arguments=name) for name in taken)
    shared = re.sub(r"extern __shared__ (\w+) (\w+)\[\];", r"\1* \2 = on_cpu::shared<\1>();", text)
    translated = ASSEMBLY.sub(lambda found: _instead(found[0]), shared)
    return "\n".join([HEADER.read_text(), translated, *entries])


def _with_headers(file: str, included: set[str]) -> str:
    """Return a file's text with each header in place of its first include directive."""
    included.add(file)

    def content(include: re.Match[str]) -> str:
        header = include[1]
        return "" if header in included else _with_headers(header, included)

    text = re.sub(r"#(?:include <cuda_\w+\.h>|pragma once)\n", "", (FOLDER / file).read_text())
    return re.sub(r'#include "(\w+\.cuh)"\n', content, text)


def _instead(assembly: str) -> str:
    found = [words for start, words in INSTEAD.items() if start in assembly]
    assert found, f"Add a line to INSTEAD of {__file__} for this statement: {assembly}"
    return found[0]
