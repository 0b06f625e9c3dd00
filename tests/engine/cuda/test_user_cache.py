"""Files of the user's cache: whatever a power loss or another program left there, all goes on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.described_gpus import H200

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from cuda_cyclegan.engine.cuda import kernel_archive, kernel_images, nvrtc
from cuda_cyclegan.engine.cuda.kernel_archive import KernelArchive
from cuda_cyclegan.engine.cuda.kernel_images import Kernels
from cuda_cyclegan.engine.cuda.nvrtc import Image, compiled
from cuda_cyclegan.engine.cuda.tuning.cache import NOTHING, Candidate, TuningCache, TuningResult
from cuda_cyclegan.engine.cuda.user_cache import read_proven, write_proven
from cuda_cyclegan.pipelines.rates import HostRates, NetworkRates, RateCache, ShownNote

CODE = Image(b"\x7fELF" + bytes(range(256)), {"pack<1>": "_pack_1"})
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut in half": lambda content: content[: len(content) // 2],
    "without its last byte": lambda content: content[:-1],
    "zeros of the same length": lambda content: bytes(len(content)),
    "zeros at its end": lambda content: content[:-100] + bytes(100),
    "of another program": lambda _: b"\x7fELFxxxx",
    "of an earlier version": lambda _: CODE.stored(),
    "no UTF-8": lambda _: b"\xff" * 99,
    "deep": lambda _: b"[" * 100_000,
    "a list": lambda _: b"[1, 2]",
    "a number": lambda _: b"1" * 5000,
    "other fields": lambda _: b'{"identity": {"gpu": "H"}, "a": {"load": -1, "store": NaN}}',
}
damaged = pytest.mark.parametrize("damage", DAMAGE)


@given(st.binary(min_size=1, max_size=99), st.data())
def test_nothing_but_the_whole_content_is_proven(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cache") / "a"
    write_proven(path, content)
    assert read_proven(path) == content
    stored = path.read_bytes()
    place = data.draw(st.integers(0, len(stored) - 1))
    flipped = bytearray(stored)
    flipped[place] ^= data.draw(st.integers(1, 255))
    for other in (stored[:place], bytes(flipped), stored + b"\0", content):
        path.write_bytes(other)
        assert read_proven(path) is None


def test_unreadable_file_is_missing(tmp_path: Path) -> None:
    assert read_proven(tmp_path / "none") is None
    assert read_proven(tmp_path) is None


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that were compiled."""
    names = list[str]()

    def compile_one(name: str, *_: object) -> Image:
        names.append(name)
        return CODE

    monkeypatch.setattr(nvrtc, "_compile", compile_one)
    monkeypatch.setattr(nvrtc, "_options", lambda *_, **__: ["--gpu-architecture=sm_90"])
    monkeypatch.setattr(nvrtc, "headers", lambda: "/")
    monkeypatch.setattr(nvrtc, "nvrtc_package", lambda: "nvrtc 1")
    return names


@damaged
def test_a_damaged_kernel_image_is_compiled_again_once(
    tmp_path: Path, compilations: list[str], damage: str
) -> None:
    def image() -> Image:
        return compiled("pack", "fp16", (9, 0), tmp_path, instances=("pack<1>",))

    assert [image(), image()] == [CODE, CODE]
    assert compilations == ["pack"]
    [path] = tmp_path.iterdir()
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert [image(), image()] == [CODE, CODE]
    assert compilations == ["pack", "pack"]


@damaged
def test_damaged_kernel_images_do_not_end_a_start(
    tmp_path: Path, compilations: list[str], damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU's kernels load such images."""
    loaded = list[bytes]()

    class Module:
        def __init__(self, code: bytes, _: object) -> None:
            loaded.append(code)

        def __enter__(self) -> "Module":
            return self

        def __exit__(self, *_: object) -> None: ...

        def kernel(self, name: str) -> str:
            return name

    monkeypatch.setattr(kernel_archive, "ARCHIVES", tmp_path / "none")
    monkeypatch.setattr(kernel_images, "CudaModule", Module)
    for _ in range(2):
        with Kernels("fp16", H200, tmp_path) as kernels:
            assert kernels.kernel("pack", "pack") == "pack"
        for path in tmp_path.iterdir():
            path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert loaded == [CODE.code] * 2
    assert compilations == ["pack"] * 2


@damaged
@pytest.mark.parametrize("comment", [b"[1]", b"7", b"{}", b'"text"', b"\xff"])
def test_a_foreign_archive_of_kernels_is_not_opened(
    tmp_path: Path, damage: str, comment: bytes
) -> None:
    path = tmp_path / "sm_90-fp16.zip"
    path.write_bytes(DAMAGE[damage](b"PK" * 99))
    assert KernelArchive.open("fp16", (9, 0), tmp_path) is None
    with kernel_archive.ZipFile(path, "w") as file:
        file.writestr("pack: whole file", b"foreign")
        file.comment = comment
    assert KernelArchive.open("fp16", (9, 0), tmp_path) is None


FOUND = TuningResult("full", 4096, (Candidate("eng1", 0, 2.0), Candidate("own", 4096, 1.0)))
IDENTITY = {"gpu": "H", "precision": "fp16"}


@damaged
def test_a_damaged_file_of_tuning_results_is_measured_again(tmp_path: Path, damage: str) -> None:
    TuningCache(tmp_path, IDENTITY).put("a", FOUND)
    [path] = tmp_path.iterdir()
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    cache = TuningCache(tmp_path, IDENTITY)
    assert cache.get("a") == NOTHING
    cache.put("a", FOUND)
    assert TuningCache(tmp_path, IDENTITY).get("a") == FOUND


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.sampled_from(["auto", "off", "x"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["a", "effort", "workspace", "candidates"]), inner)
        ),
        max_leaves=8,
    )
)
def test_foreign_tuning_results_are_none(
    tmp_path_factory: pytest.TempPathFactory, foreign: Any
) -> None:
    """The same identity and almost the same form do not make them valid."""
    folder = tmp_path_factory.mktemp("cache")
    TuningCache(folder, IDENTITY).put("a", FOUND)
    [path] = folder.iterdir()
    stored = json.loads(path.read_text())
    for changed in (
        foreign,
        {**stored, "findings": foreign},
        {**stored, "findings": {"a": foreign}},
    ):
        path.write_text(json.dumps(changed))
        found = TuningCache(folder, IDENTITY).get("a")
        for effort in ("off", "auto", "quick", "full"):
            found.covers(effort, 0)
        found.best(0)


def test_a_result_of_an_automatic_search_covers_no_search() -> None:
    assert not TuningResult("auto", 1, ()).covers("quick", 0)


@damaged
def test_a_damaged_file_of_rates_is_measured_again(tmp_path: Path, damage: str) -> None:
    RateCache(tmp_path).put({"a": HostRates(1, 2)})
    [path] = tmp_path.iterdir()
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert RateCache(tmp_path).get(HostRates, "a") is None
    RateCache(tmp_path).put({"a": HostRates(1, 2)})
    assert RateCache(tmp_path).get(HostRates, "a") == HostRates(1, 2)


@given(st.floats() | st.integers() | st.text() | st.none() | st.lists(st.integers()))
def test_invalid_rate_is_none(tmp_path_factory: pytest.TempPathFactory, number: Any) -> None:
    folder = tmp_path_factory.mktemp("cache")
    (folder / "rates.json").write_text(json.dumps({"a": {"tile": number, "opening": number}}))
    found = RateCache(folder).get(NetworkRates, "a")
    assert found is None or 0 <= found.tile < float("inf")
    assert RateCache(folder).get(ShownNote, "a") is None
