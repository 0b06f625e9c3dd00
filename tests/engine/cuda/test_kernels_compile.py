"""All kernels compile for every supported chip; no GPU is needed."""

import pytest

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

import re
import shutil
import subprocess
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import sizeof
from importlib import metadata
from itertools import accumulate
from pathlib import Path
from struct import unpack_from
from typing import Any

from support.gpu_on_cpu.kept_nvrtc import KeptNvrtc

from cuda_cyclegan.engine.compiler.kernel_source import FOLDER, structure
from cuda_cyclegan.engine.compiler.kernels.table import KERNELS as TABLE
from cuda_cyclegan.engine.compiler.tensors import ELEMENTS
from cuda_cyclegan.engine.cuda import nvrtc
from cuda_cyclegan.engine.cuda.kernel_archive import KernelArchive, write_archive
from cuda_cyclegan.engine.cuda.nvrtc import Image, compiled, image_key
from cuda_cyclegan.engine.cuda.user_cache import write_proven
from cuda_cyclegan.engine.errors import CudaError
from cuda_cyclegan.engine.options import BF16_CAPABILITY, Precision

KERNELS = sorted(TABLE)
WGMMA = [name for name, spec in TABLE.items() if spec.needs_wgmma]

CHIPS = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]
OLDEST, NEWEST = CHIPS[0], CHIPS[-1]
DISASSEMBLED = (9, 0)
CONDITIONS: dict[str, Callable[[tuple[int, int]], bool]] = {
    "__CUDA_ARCH__ >= 800": lambda chip: chip >= (8, 0),
    "defined(__CUDA_ARCH_FEAT_SM90_ALL)": lambda chip: chip == (9, 0),
}
"""Macros by which kernels read the chip, and the chips they are compiled for."""


def source_of(file: str) -> str:
    """A kernel's text with the headers that it includes."""
    text = (FOLDER / file).read_text()
    return "".join(map(source_of, re.findall(r'#include "(\w+\.cuh)"', text))) + text


IN_BLOCKS = [name for name in KERNELS if TABLE[name].in_blocks]
"""Kernels that volumes need."""


def compiled_for_blocks(name: str) -> tuple[bool, ...]:
    """Each form that a kernel has: for patches, and for blocks of a volume."""
    return (False, True) if name in IN_BLOCKS else (False,)


HALF, WHOLE = ("fp16", "bf16"), ("tf32", "fp32")

BY_CHIP = [name for name in KERNELS if "__CUDA_ARCH" in source_of(f"{name}.cu")]


def readers_of_each_text(name: str) -> list[list[tuple[int, int]]]:
    """Chips, from the oldest on, to which a kernel reads the same."""
    asked = [holds for words, holds in CONDITIONS.items() if words in source_of(f"{name}.cu")]
    readers: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
    for chip in CHIPS:
        readers.setdefault(tuple(holds(chip) for holds in asked), []).append(chip)
    return [*readers.values()]


def ends_of_each_text(name: str) -> list[tuple[int, int]]:
    """Return the oldest and the newest of the chips to which a kernel reads the same."""
    texts = readers_of_each_text(name)
    return sorted({end for chips in texts for end in (chips[0], chips[-1])})


def one_of_each_text(name: str, precision: str) -> list[tuple[int, int]]:
    """Return one of the chips to which a kernel reads the same, that has the precision.

    The one whose machine code is looked through, where it is among them: it is compiled for both.
    """
    have = [
        [chip for chip in chips if precision != "bf16" or chip >= BF16_CAPABILITY]
        for chips in readers_of_each_text(name)
    ]
    return [DISASSEMBLED if DISASSEMBLED in chips else chips[0] for chips in have if chips]


@pytest.mark.parametrize("name", BY_CHIP)
def test_kernels_ask_for_nothing_of_the_chip_but_what_is_known(name: str) -> None:
    text = source_of(f"{name}.cu")
    for words in CONDITIONS:
        text = text.replace(words, "")
    assert "__CUDA_ARCH" not in text


def chips_of(name: str, precision: str) -> list[tuple[int, int]]:
    """Both ends of each text in one precision; the others differ by the type of a number.

    Of kernels that have no instructions for some chips, bf16 differs from fp16 by nothing else, and
    that the compiler reads it is seen as the arguments are laid out.
    """
    if precision == "bf16" and name not in BY_CHIP:
        return []
    return ends_of_each_text(name) if precision == "fp16" else one_of_each_text(name, precision)


def precisions_of(name: str) -> list[Precision]:
    """Return the precisions in which a kernel is examined; its index arithmetic is mostly the same
    in all.

    Of kernels for warp groups, it is the same in fp16 and bf16, as a test shows.
    """
    text = (FOLDER / f"{name}.cu").read_text()
    return ["fp16"] if name in WGMMA or "#ifndef ELEMENT_FLOAT" in text else ["fp32"]


def images_of_compute_capability_9() -> Iterator[tuple[str, Precision, bool]]:
    for name in KERNELS:
        for precision in precisions_of(name):
            for in_blocks in compiled_for_blocks(name):
                yield name, precision, in_blocks


def disassembler_of_cuda() -> Path | None:
    """Return where the disassembler is, if it is installed."""
    try:
        files = metadata.files("nvidia-cuda-nvdisasm") or []
    except metadata.PackageNotFoundError:
        return None
    return next(Path(str(file.locate())) for file in files if file.name == "nvdisasm")


DISASSEMBLER = disassembler_of_cuda()


@contextmanager
def without_optimisation(target: bytes | None = None) -> Iterator[None]:
    """Compile in a tenth of the time, with the same rejections; no image of it is fit for use."""
    whole = nvrtc.nvrtc.nvrtcCompileProgram

    def hurried(program: Any, count: int, options: list[bytes]) -> Any:
        reported = [target or options[0], *options[1:], b"--Ofast-compile=max"]
        return whole(program, count + 1, reported)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvrtc.nvrtc, "nvrtcCompileProgram", hurried)
        yield


@pytest.fixture(scope="module", autouse=True)
def compiler() -> Iterator[None]:
    """NVRTC, which compiles once what no header, option or version has changed since."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvrtc, "nvrtc", KeptNvrtc(nvrtc.nvrtc))
        yield


def whole(
    name: str, precision: Precision, chip: tuple[int, int], *, in_blocks: bool = False
) -> Image:
    """Return the image of a file with all instances that the chip may launch."""
    instances = tuple(filter(None, TABLE[name].instances_for(precision, chip)))
    return compiled(name, precision, chip, instances=instances, in_blocks=in_blocks)


def image(
    name: str, precision: Precision, chip: tuple[int, int], *, in_blocks: bool = False
) -> bytes:
    """Return machine code that is not optimised."""
    with without_optimisation():
        return whole(name, precision, chip, in_blocks=in_blocks).code


REFUSED = {
    "an unknown name": ("x[0] = missing;", (9, 0)),
    "an unknown instruction": ('asm volatile("wgmma.fences;");', (9, 0)),
    "more registers than a thread has": (
        'asm volatile("setmaxnreg.inc.sync.aligned.u32 300;");',
        (9, 0),
    ),
    "warp groups on a later chip": ('asm volatile("wgmma.fence.sync.aligned;");', (12, 0)),
    "asynchronous copies on an earlier chip": ('asm volatile("cp.async.wait_all;");', (7, 5)),
    "more shared memory than a block has": (
        "__shared__ int held[99999]; held[x[0]] = x[1]; x[2] = held[x[3]];",
        (9, 0),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_compiler_refuses_the_same_without_optimisation(what, tmp_path, monkeypatch):
    body, chip = REFUSED[what]
    monkeypatch.setattr(nvrtc, "FOLDER", tmp_path)
    (tmp_path / "refused.cu").write_text(f'extern "C" __global__ void refused(int* x) {{ {body} }}')
    with pytest.raises(CudaError, match=r"refused\.cu") as refusal:
        compiled("refused", "fp16", chip)
    with without_optimisation(), pytest.raises(CudaError) as hurried:
        compiled("refused", "fp16", chip)
    # The compiler counts lines of what it made in between, which differ.
    reported = [re.sub(r"line \d+", "", str(error.value)) for error in (refusal, hurried)]
    assert reported[0] == reported[1]


PRECISIONS = ("fp16", "bf16", "fp32")


def image_of(
    name: str, precision: str, chip: tuple[int, int], chips: Iterable[tuple[int, int]] = CHIPS
) -> Any:
    """The parameters of a test that compiles it; slow unless its chip is among `chips`."""
    marks = () if chip in chips else pytest.mark.slow
    title = f"{name}-{precision}-{chip[0]}.{chip[1]}"
    return pytest.param(name, precision, chip, id=title, marks=marks)


@pytest.mark.parametrize(
    ("name", "precision", "chip"),
    [
        image_of(name, precision, chip, (OLDEST, DISASSEMBLED) if precision != "bf16" else ())
        for name in KERNELS
        for precision in PRECISIONS
        for chip in chips_of(name, precision)
    ],
)
def test_each_kernel_compiles(name, precision, chip):
    assert image(name, precision, chip).startswith(b"\x7fELF")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "chip"),
    [
        (name, chips[0])
        for name in KERNELS
        for chips in readers_of_each_text(name)
        if chips[0] != DISASSEMBLED
    ],
    ids=str,
)
def test_each_text_is_optimised(name, chip):
    """Texts are compiled as for users, so that the whole compiler has processed each."""
    assert whole(name, "fp16", chip).code.startswith(b"\x7fELF")


@pytest.mark.parametrize(
    ("name", "precision", "chip"),
    [
        *(image_of(name, "fp32", DISASSEMBLED) for name in IN_BLOCKS),
        *(image_of(name, "fp16", OLDEST, ()) for name in IN_BLOCKS if name in BY_CHIP),
    ],
)
def test_each_kernel_of_blocks_compiles(name, precision, chip):
    of_blocks = image(name, precision, chip, in_blocks=True)
    assert of_blocks.startswith(b"\x7fELF")
    assert of_blocks != image(name, precision, chip)


@pytest.mark.parametrize("precision", ["fp16", pytest.param("bf16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", WGMMA)
def test_kernels_for_warp_groups_are_there_on_the_one_chip_that_has_wgmma(name, precision):
    for in_blocks in compiled_for_blocks(name):
        there, elsewhere = (
            image(name, precision, chip, in_blocks=in_blocks) for chip in (DISASSEMBLED, NEWEST)
        )
        assert name.encode() in there
        assert name.encode() not in elsewhere.replace(f"{name}.cu".encode(), b"")


@pytest.mark.parametrize(
    ("name", "precision", "chip"),
    [
        image_of(name, "fp16", chip, (DISASSEMBLED,))
        for name in BY_CHIP
        if name in IN_BLOCKS
        for chip in ends_of_each_text(name)
        if chip not in (OLDEST, NEWEST)
    ],
)
def test_kernels_of_blocks_that_ask_for_the_chip_compile_for_those_between(name, precision, chip):
    assert image(name, precision, chip, in_blocks=True).startswith(b"\x7fELF")


def test_each_file_is_in_the_table() -> None:
    assert {path.stem for path in FOLDER.glob("*.cu")} == TABLE.keys()


@pytest.mark.parametrize("name", KERNELS)
def test_the_table_says_what_a_file_asks_for(name: str) -> None:
    spec, text = TABLE[name], (FOLDER / f"{name}.cu").read_text()
    assert spec.needs_wgmma == ("__CUDA_ARCH_FEAT_SM90_ALL" in text)
    of_numbers = {"#ifndef ELEMENT_FLOAT": HALF, "#ifdef ELEMENT_FLOAT": WHOLE}
    asked = [found for words, found in of_numbers.items() if words in text]
    asked += [HALF] * ("#if !defined(ELEMENT_FLOAT)" in text)
    assert [*spec.precisions] == [*(asked or [(*ELEMENTS,)])[0]]
    is_of_volumes = "struct Blocks" in source_of(f"{name}.cu") and name != "normalise"
    assert spec.in_blocks == is_of_volumes  # a normalisation is of a volume that fills its block
    templates = set(re.findall(r"template <[^;{]*>\s*__global__ [^{;]*?\b(\w+)\(\w+ p\)", text))
    assert {instance.partition("<")[0] for instance in spec.instances} == templates


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_that_is_no_template_keeps_its_name(name: str) -> None:
    declaration = r'(template <[^;{]*>\s*|extern "C" )?__global__ [^{;]*?\b(\w+)\(\s*\w+ p\s*\)'
    kernels = re.findall(declaration, (FOLDER / f"{name}.cu").read_text())
    assert kernels
    renamed = [kernel for prefix, kernel in kernels if not prefix]
    assert not renamed, (
        f'{name}.cu: launches find {renamed} by their plain names; declare them as extern "C" '
        "__global__, or make them templates and list these in `instances` of the spec"
    )


@pytest.mark.parametrize("name", KERNELS)
def test_a_head_ends_with_a_dated_time_or_states_that_there_is_none(name: str) -> None:
    head, _, _ = (FOLDER / f"{name}.cu").read_text().partition("\n\n")
    *_, last = re.split(r"\n//\n", head)
    assert re.match(r"// (Measured \d{4}-\d\d-\d\d.* \([AHBL]\d+|Not measured yet\.)", last), last


def structures_in(name: str) -> list[str]:
    """Structures that the kernels of a file take."""
    source = (FOLDER / f"{name}.cu").read_text()
    return [*dict.fromkeys(re.findall(r"__global__ [^{;]*?\b([A-Z]\w+) p\b", source))]


@pytest.mark.parametrize(
    "precision", ["fp16", "fp32", pytest.param("bf16", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("name", "in_blocks"),
    [(name, in_blocks) for name in KERNELS for in_blocks in compiled_for_blocks(name)],
)
def test_arguments_are_laid_out_as_the_kernels_read_them(
    name, in_blocks, precision, tmp_path, monkeypatch
):
    headers = list(FOLDER.glob("*.cuh"))
    checks: list[str] = []
    for taken in structures_in(name):
        read = structure(f"{name}.cu", taken, in_blocks=in_blocks)
        sizes = {f"{taken}::{field}": getattr(read, field).size for field, *_ in read._fields_}
        for what, size in {taken: sizeof(read), **sizes}.items():
            checks.append(f'static_assert(sizeof({what}) == {size}, "{what}");')
    assert checks
    for header in headers:
        shutil.copy(header, tmp_path)
    (tmp_path / f"{name}.cu").write_text("\n".join((structures_alone(name), *checks)))
    monkeypatch.setattr(nvrtc, "FOLDER", tmp_path)
    assert compiled(name, precision, (9, 0), in_blocks=in_blocks).code.startswith(b"\x7fELF")


def structures_alone(name: str) -> str:
    """Return the kernel's text, of which the compiler reads all and compiles no kernel."""
    text = (FOLDER / f"{name}.cu").read_text().replace("__launch_bounds__", "UNBOUNDED")
    unused = text.replace('extern "C" __global__', "static __device__")  # templates are unused
    return f"#define UNBOUNDED(...)\n{unused}"


def test_a_chip_that_the_compiler_does_not_know_gets_a_program_for_its_driver_to_finish():
    image = compiled("pack", "fp16", (99, 0)).code
    major, minor = nvrtc.newest_chip()
    assert f".target sm_{major}{minor}".encode() in image


def test_a_kernel_that_does_not_compile_is_reported_with_the_compilers_words(tmp_path, monkeypatch):
    monkeypatch.setattr(nvrtc, "FOLDER", tmp_path)
    (tmp_path / "broken.cu").write_text("int main() { return missing; }")
    with pytest.raises(CudaError, match=r'broken\.cu\(1\): error: identifier "missing"'):
        compiled("broken", "fp16", (9, 0))


def test_headers_in_the_working_directory_are_none_of_the_kernels(tmp_path, monkeypatch):
    before = compiled("pack", "fp16", (9, 0))
    for header in FOLDER.glob("*.cuh"):
        (tmp_path / header.name).write_text("#error")
    monkeypatch.chdir(tmp_path)
    assert compiled("pack", "fp16", (9, 0)) == before


@pytest.mark.parametrize("name", KERNELS)
def test_compilation_for_fp32_is_the_program_of_tf32(name):
    assert image_key(name, "tf32", (9, 0)) == image_key(name, "fp32", (9, 0))


LARGEST_ARCHIVE = 2100 << 10
"""Bytes in fp16: with as many in bf16 and 1.2 MB in fp32, archives for each of the CHIPS stay below
40 MB in a wheel.
"""


@pytest.mark.slow
def test_an_archive_holds_what_its_kernels_compile_to(tmp_path: Path) -> None:
    path = write_archive(tmp_path, "fp16", DISASSEMBLED)
    assert path.stat().st_size < LARGEST_ARCHIVE
    archive = KernelArchive.open("fp16", DISASSEMBLED, tmp_path)
    assert archive is not None
    with archive:
        image = archive.image("pack", None, in_blocks=True)
        assert image == compiled("pack", "fp16", DISASSEMBLED, in_blocks=True)


def test_a_kept_kernel_is_read_without_the_compiler(tmp_path, monkeypatch):
    first = compiled("pack", "fp16", (9, 0), tmp_path)
    monkeypatch.setattr(nvrtc, "nvrtc", None)
    assert compiled("pack", "fp16", (9, 0), tmp_path) == first


def test_another_compiler_compiles_anew(monkeypatch):
    before = image_key("pack", "fp16", (9, 0))
    monkeypatch.setattr(nvrtc, "nvrtc_package", lambda: "nvidia-cuda-nvrtc 99.0")
    assert image_key("pack", "fp16", (9, 0)) != before


def test_compiled_kernels_are_kept(tmp_path):
    first = compiled("pack", "fp16", (9, 0), tmp_path)
    [kept] = tmp_path.iterdir()
    changed = Image(b"kept", {"pack<1>": "_pack_1", "pack<2>": "_pack_2"})
    write_proven(kept, changed.stored())
    assert first != changed
    assert compiled("pack", "fp16", (9, 0), tmp_path) == changed
    assert compiled("pack", "bf16", (9, 0), tmp_path) != changed


def test_instances_of_a_template_are_kept_apart(tmp_path: Path) -> None:
    one, other, both = (
        ("convolve_voxels<1>",),
        ("convolve_voxels<2>",),
        ("convolve_voxels<1>", "convolve_voxels<2>"),
    )
    made = [
        compiled("convolve_voxels", "fp16", (9, 0), tmp_path, instances=instances)
        for instances in (one, other, both)
    ]
    assert [(*image.symbols,) for image in made] == [one, other, both]
    for image in made:
        assert all(symbol.encode() in image.code for symbol in image.symbols.values())
    assert made[0].symbols["convolve_voxels<1>"].encode() not in made[1].code
    again = compiled("convolve_voxels", "fp16", (9, 0), tmp_path, instances=other)
    assert again == made[1]
    assert len([*tmp_path.iterdir()]) == 3


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path):
    (tmp_path / "file").touch()
    before = compiled("pack", "fp16", (9, 0))
    assert compiled("pack", "fp16", (9, 0), tmp_path / "file" / "cache") == before


needs_disassembler = pytest.mark.skipif(
    DISASSEMBLER is None, reason="the disassembler of CUDA is not installed"
)


def machine_code(image: bytes) -> bytes:
    """All that an ELF file holds to be executed."""
    table, count = unpack_from("<40xQ", image)[0], unpack_from("<60xH", image)[0]
    sections = [unpack_from("<8xQ8xQQ", image, table + 64 * number) for number in range(count)]
    is_executable = 4
    return b"".join(image[at : at + size] for flags, at, size in sections if flags & is_executable)


def arithmetic_of_whole_numbers(name: str, precision: Precision, in_blocks: bool) -> list[str]:
    """Each instruction of it that ptxas is given for compute capability 9.0, with its registers."""
    bindings = nvrtc.nvrtc
    with (
        without_optimisation(b"--gpu-architecture=compute_90a"),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(bindings, "nvrtcGetCUBINSize", bindings.nvrtcGetPTXSize)
        patch.setattr(bindings, "nvrtcGetCUBIN", bindings.nvrtcGetPTX)
        text = whole(name, precision, DISASSEMBLED, in_blocks=in_blocks).code.decode()
    return re.findall(r"^\s*((?:@\S+\s+)?[a-z]\S*\.[su](?:32|64)\s[^\[\n]*;)", text, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("name", WGMMA)
def test_index_arithmetic_is_the_same_in_bf16_as_in_fp16(name):
    """The output of ptxas is therefore examined in one of them."""
    for in_blocks in compiled_for_blocks(name):
        fp16, bf16 = (
            arithmetic_of_whole_numbers(name, precision, in_blocks)
            for precision in ("fp16", "bf16")
        )
        assert len(fp16) > 100
        assert bf16 == fp16


INSTRUCTION = 16
"""Bytes of each."""


def with_wrong_predicates(code: Mapping[str, bytes], folder: Path) -> set[str]:
    """Return the kernels whose instructions compare wrongly, as ptxas 12.9 and 13.0 make them
    compare on 9.0.

    For `max(0, min(16, x)) == 16` they take the predicate that VIMNMX.RELU writes besides its
    number, which is that of another comparison.
    """
    (folder / "code").write_bytes(b"".join(code.values()))
    assert DISASSEMBLER
    command = [DISASSEMBLER, "--binary", "SM90a", folder / "code"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    read = re.findall(r"/\*([0-9a-f]+)\*/ +([^;]*);", done.stdout)
    ends = [*accumulate(map(len, code.values()))]
    assert len(read) * INSTRUCTION == ends[-1]
    wrong = re.compile(r"VIMNMX\S*RELU.*P[0-6],")
    places = [int(place, 16) for place, instruction in read if wrong.search(instruction)]
    return {[*code][bisect(ends, place)] for place in places}


@pytest.mark.slow
@needs_disassembler
@pytest.mark.parametrize(
    ("name", "precision", "in_blocks"), [*images_of_compute_capability_9()], ids=str
)
def test_no_kernel_compares_by_a_wrong_predicate(name, precision, in_blocks, tmp_path):
    code = machine_code(whole(name, precision, DISASSEMBLED, in_blocks=in_blocks).code)
    assert code
    assert with_wrong_predicates({name: code}, tmp_path) == set()


@needs_disassembler
def test_a_wrong_predicate_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(nvrtc, "FOLDER", tmp_path)
    code = {}
    for name, least in (("before", -1), ("wrong", 0), ("behind", -1)):
        clamp = f"const int rows = max({least}, min(16, x[0])); x[0] = rows == 16 ? -1 : rows;"
        kernel = f'extern "C" __global__ void clamped(int* x) {{ {clamp} }}'
        (tmp_path / "clamped.cu").write_text(kernel)
        code[name] = machine_code(compiled("clamped", "fp16", DISASSEMBLED).code)
    assert with_wrong_predicates(code, tmp_path) == {"wrong"}
