"""Checks whether the interpreter and the packages are those that this program needs."""

import importlib
import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, files, requires, version
from typing import Any

from ...engine import TELEMETRY_SWITCH as SWITCH
from .findings import Finding, failure, ok, warning

_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+?)\s*((?:[<>]=?[0-9.]+,?)+)$")
_BOUND = re.compile(r"(<|>=)([0-9.]+)")
_REINSTALL = "install it again: pip install --force-reinstall"
_SLOW = 50e6


def examine_installation() -> Iterator[Finding]:
    """Examine interpreter, packages, runtimes of the CPU and their telemetry, and gzip."""
    yield ok("Python", f"{platform.python_version()}, {sys.executable}, {platform.platform()}")
    found = list(_packages())
    yield from found
    broken = {finding.subject for finding in found if finding.state != "ok"}
    if "onnxruntime" not in broken:
        yield _onnxruntime()
    if broken.isdisjoint(("msgspec", "numpy")):
        yield _openvino()
    words = f"ONNX Runtime's is off ({SWITCH}=1), and OpenVINO's is not loaded: nothing is sent"
    yield ok("Telemetry", words)
    if "isal" not in broken:
        yield _gzip()


def _packages() -> Iterator[Finding]:
    """Yield one line for all valid packages, and one for each other package."""
    sound: list[str] = []
    for name, bounds in _requirements():
        finding = _package(name, bounds)
        if finding is None:
            sound.append(f"{name} {version(name)}")
        else:
            yield finding
    if sound:
        yield ok("Packages", ", ".join(sound))


def _requirements() -> Iterator[tuple[str, str]]:
    """Yield the required packages with their version bounds, without those of extras."""
    for stated in requires("cuda-cyclegan") or []:
        if found := _REQUIREMENT.match(stated):
            yield found[1], found[2]


def _package(name: str, bounds: str) -> Finding | None:
    """Return a finding on a package with a problem; None if it has none."""
    wanted = f"'{name}{bounds}'"
    try:
        found = version(name)
    except PackageNotFoundError:
        return failure(name, "is not installed", f"pip install {wanted}")
    if not _is_within(found, bounds):
        words = f"{found} is installed and {bounds} is needed"
        return failure(name, words, f"pip install --upgrade {wanted}")
    try:
        importlib.import_module(_module(name))
    except Exception as error:  # a broken package may raise anything
        words = f"{found} is installed but cannot be imported ({type(error).__name__}: {error})"
        return failure(name, words, f"{_REINSTALL} {wanted}")
    return None


def _module(name: str) -> str:
    """Return the module name of a package, which may differ from its own name."""
    modules = {file.parts[0] for file in files(name) or () if file.parts[1:] == ("__init__.py",)}
    return name if name in modules or not modules else min(modules)


def _onnxruntime() -> Finding:
    import onnxruntime as _onnxruntime

    onnxruntime: Any = _onnxruntime  # the package ships no types
    providers: list[str] = onnxruntime.get_available_providers()
    words = f"{version('onnxruntime')}, {', '.join(providers)}"
    if "CPUExecutionProvider" not in providers:
        return failure("ONNX Runtime", f"{words}: no CPU", f"{_REINSTALL} onnxruntime")
    return ok("ONNX Runtime", words)


def _openvino() -> Finding:
    from ...engine.cpu.openvino import openvino  # late, as NumPy comes with it
    from ...engine.cpu.openvino_support import has_bf16, is_installed

    if not is_installed():
        words = "is not installed; ONNX Runtime computes on the CPU, at half the speed or less"
        return ok("OpenVINO", words)
    try:
        openvino()
        precisions = "fp32 and bf16" if has_bf16() else "fp32"
        return ok("OpenVINO", f"{version('openvino')}, {precisions}")
    except Exception as error:  # a broken package may raise anything
        words = f"cannot be imported ({type(error).__name__}: {error})"
        return failure("OpenVINO", words, f"{_REINSTALL} openvino")


def _gzip() -> Finding:
    from isal import igzip as _igzip

    igzip: Any = _igzip  # typed only in part
    sample = _voxels()
    begin = time.perf_counter()
    packed = igzip.compress(sample, compresslevel=1)
    middle = time.perf_counter()
    restored = igzip.decompress(packed)
    end = time.perf_counter()
    name = f"isal {version('isal')}"
    if restored != sample:
        return failure("gzip", f"{name} does not restore what it packed", f"{_REINSTALL} isal")
    rates = [len(sample) / spent for spent in (middle - begin, end - middle)]
    words = f"{name}, packs {rates[0] / 1e6:.0f} and unpacks {rates[1] / 1e6:.0f} MB/s per core"
    if min(rates) < _SLOW:
        return warning("gzip", words, "close programs that keep the processor busy")
    return ok("gzip", words)


def _voxels() -> bytes:
    """Return noise of 16-bit integers below 256, which compresses about as well as scans."""
    voxels = bytearray(8 << 20)
    voxels[::2] = os.urandom(4 << 20)
    return bytes(voxels)


def _is_within(found: str, bounds: str) -> bool:
    return all(
        (_numbers(found) < _numbers(limit)) == (sign == "<")
        for sign, limit in _BOUND.findall(bounds)
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.split("+")[0])[:3])
