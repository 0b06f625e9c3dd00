"""Argument structures and constants are those that the kernels' sources declare."""

from collections.abc import Iterator
from ctypes import sizeof
from pathlib import Path
from typing import Any

import pytest

from cuda_cyclegan.engine.compiler import kernel_source
from cuda_cyclegan.engine.compiler.kernel_source import (
    KernelSourceError,
    constants,
    most_of,
    size_of,
    structure,
)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A kernel's file, read anew."""
    cached: list[Any] = [structure, *vars(kernel_source).values()]
    caches = [value for value in cached if hasattr(value, "cache_clear")]
    monkeypatch.setattr(kernel_source, "FOLDER", tmp_path)
    for function in caches:
        function.cache_clear()
    yield tmp_path / "kernel.cu"
    for function in caches:
        function.cache_clear()


def fields(kind: Any) -> dict[str, tuple[int, int]]:
    """Offset and size of each field."""
    found = ((name, getattr(kind, name)) for name, _ in kind._fields_)
    return {name: (field.offset, field.size) for name, field in found}


def test_fields_lie_where_the_compiler_puts_them(kernel: Path) -> None:
    kernel.write_text("""
struct Inner {
    int value;
    Index far;  // aligned to 8
};

struct Arguments {
    const Element* source;  // first voxel
    int extents[3], channels;
    unsigned long long* sum;
    float slope;
    Inner parts[2];

    // A function of it.
    __device__ __forceinline__ int number() const { return channels; }
};
""")
    kind = structure("kernel.cu", "Arguments")
    assert fields(kind) == {
        "source": (0, 8),
        "extents": (8, 12),
        "channels": (20, 4),
        "sum": (24, 8),
        "slope": (32, 4),
        "parts": (40, 32),
    }
    inner = structure("kernel.cu", "Inner")
    values: Any = kind(extents=(1, 2, 3), parts=(inner(value=4), inner(far=5)))
    assert (*values.extents, values.parts[0].value, values.parts[1].far) == (1, 2, 3, 4, 5)
    with pytest.raises(AttributeError):
        kind(unknown=1)


def test_fields_for_blocks_are_those_that_the_preprocessor_leaves(kernel: Path) -> None:
    kernel.write_text("""
struct Arguments {
    int first;
#ifdef IN_BLOCKS
    double block;
#else
    float patch;
#endif
    int last;
};
""")
    assert [*fields(structure("kernel.cu", "Arguments"))] == ["first", "patch", "last"]
    of_blocks = structure("kernel.cu", "Arguments", in_blocks=True)
    assert [*fields(of_blocks)] == ["first", "block", "last"]
    assert sizeof(of_blocks) == 24


def test_a_structure_within_one_for_blocks_is_that_of_patches(kernel: Path) -> None:
    kernel.write_text("""
struct Inner {
    int extents[3];
};

struct Arguments {
    int first;
#ifdef IN_BLOCKS
    Inner blocks;
#endif
};
""")
    values: Any = structure("kernel.cu", "Arguments", in_blocks=True)()
    values.blocks = structure("kernel.cu", "Inner")((1, 2, 3))
    assert [*values.blocks.extents] == [1, 2, 3]


def test_headers_are_read_too(kernel: Path) -> None:
    kernel.write_text('#include "outer.cuh"\n\nstruct Arguments {\n    Part part;\n};\n')
    (kernel.parent / "outer.cuh").write_text('#pragma once\n#include "inner.cuh"\n')
    (kernel.parent / "inner.cuh").write_text("struct Part {\n    int origin[3];\n};\n")
    kind = structure("kernel.cu", "Arguments")
    assert dict(kind._fields_)["part"] is structure("inner.cuh", "Part")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "line",
    [
        "Unknown value;",
        "short value;",
        "Element value;",
        "int value[N];",
        "int value : 3;",
        "int& value;",
        "int value = 0;",
        "float* one, *other;",
        "int value",
        "#if defined(SOMETHING)",
        "template <int N>",
    ],
)
def test_unknown_name_is_reported_by_its_file_and_line(line: str, kernel: Path) -> None:
    kernel.write_text(f"struct Arguments {{\n    int before;\n    {line}\n}};\n")
    with pytest.raises(KernelSourceError, match=r"^kernel\.cu:3: "):
        structure("kernel.cu", "Arguments")


@pytest.mark.parametrize(
    "text", ["", "struct alignas(8) Arguments {\n};\n", "// struct Arguments {"]
)
def test_a_missing_structure_is_named(text: str, kernel: Path) -> None:
    kernel.write_text(text)
    with pytest.raises(KernelSourceError, match=r"^kernel\.cu: there is no struct Arguments"):
        structure("kernel.cu", "Arguments")


def test_constants_are_those_of_the_file(kernel: Path) -> None:
    kernel.write_text("""
#include "header.cuh"
constexpr int SIDE = 16, SEEN = SIDE + 1;  // of a block; in voxels
constexpr int BOX = 2 * (SEEN * SEEN + 6) / 4 - 1;
constexpr int LANES = 16 / sizeof(Element), WIDTH = LANES;
constexpr float SHARE = 0.5f;
enum Border { REFLECT = 0, REPLICATE = SIDE / 8 };
enum Form { PLAIN, GENERAL };
template <int TILES>
void convolve() {
    constexpr int ROWS = 4 * TILES;
}
""")
    (kernel.parent / "header.cuh").write_text("constexpr int OTHER = 3;\n")
    found = constants("kernel.cu")
    expected = {"SIDE": 16, "SEEN": 17, "BOX": 146, "REFLECT": 0, "REPLICATE": 2}
    assert {name: found[name] for name in expected} == expected
    for name in ("LANES", "WIDTH", "SHARE", "ROWS", "OTHER", "PLAIN"):
        with pytest.raises(
            KernelSourceError, match=rf"^kernel\.cu: there is no integer constant {name}"
        ):
            found[name]


def test_sizes_and_lengths_of_arrays_are_those_of_the_source(kernel: Path) -> None:
    kernel.write_text("""
struct Arguments {
    unsigned long long state;
    int parts[3];
};
""")
    assert size_of("kernel.cu", "Arguments") == 24
    assert most_of("kernel.cu", "Arguments", "parts") == 3
