"""Compile the kernels for one chip and one element type; keep the machine code on disk."""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ..compiler.gpu_properties import WGMMA_CAPABILITY
from ..compiler.kernel_source import FOLDER
from ..compiler.tensors import ELEMENTS
from ..errors import CudaError, DeviceMemoryError, DeviceUnavailableError
from ..options import Precision
from ..probe.cuda_packages import nvrtc_package
from .user_cache import read_proven, write_proven

nvrtc: Any = import_module(
    "cuda.bindings.nvrtc"
)  # the package's types are generated and incomplete
pathfinder: Any = import_module("cuda.pathfinder")


@dataclass(frozen=True, slots=True)
class Image:
    """Machine code of a kernel file, or PTX; a kernel that is not a template keeps its plain name.

    symbols: name of each compiled instance of a template in the code, by its C++ name.
    """

    code: bytes
    symbols: Mapping[str, str]

    def stored(self) -> bytes:
        """Return what is kept on disk."""
        lines = (f"{instance}={symbol}\n" for instance, symbol in self.symbols.items())
        return "".join(lines).encode() + b"\0" + self.code

    @classmethod
    def read(cls, stored: bytes) -> "Image":
        """Return the image that was stored."""
        lines, _, code = stored.partition(b"\0")
        pairs = (line.split("=") for line in lines.decode().splitlines())
        return cls(code, dict(pairs))


def compiled(
    name: str,
    precision: Precision,
    capability: tuple[int, int],
    cache: Path | None = None,
    *,
    instances: tuple[str, ...] = (),
    in_blocks: bool = False,
) -> Image:
    """Compile kernels/NAME.cu for a compute capability; to PTX if NVRTC is older than it.

    instances: of its templates, by their C++ names. in_blocks: whether the patches of a launch are
    blocks of one volume. Raises CudaError with the compiler's message if it does not compile.
    """
    key = image_key(name, precision, capability, instances=instances, in_blocks=in_blocks)
    kept = cache / f"{name}-{precision}-{key}.bin" if cache else None
    if kept and (stored := read_proven(kept)):
        return Image.read(stored)
    options = _options(precision, capability, in_blocks=in_blocks)
    image = _compile(name, *_sources(name), [*options, f"-I{headers()}"], instances)
    with suppress(OSError):  # a folder that cannot be written costs the next start some time
        if kept is not None:
            write_proven(kept, image.stored())
    return image


def image_key(
    name: str,
    precision: Precision,
    capability: tuple[int, int],
    *,
    instances: tuple[str, ...] = (),
    in_blocks: bool = False,
) -> str:
    """Return a key that changes with all that the machine code depends on.

    It includes the version of the compiler's package, because loading the compiler takes longer
    than reading an image.
    """
    parts = *_sources(name), ELEMENTS[precision], capability, in_blocks, nvrtc_package()
    whole = (*parts, name, instances) if instances else parts
    return hashlib.sha256(repr(whole).encode()).hexdigest()[:24]


def _sources(name: str) -> tuple[bytes, Mapping[str, bytes]]:
    """Return a kernel's text, and those of the headers by their names."""
    return (FOLDER / f"{name}.cu").read_bytes(), _headers(FOLDER)


@cache
def _headers(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.cuh"))}


def _options(precision: Precision, capability: tuple[int, int], *, in_blocks: bool) -> list[str]:
    known: list[int] = _call(nvrtc.nvrtcGetSupportedArchs)
    wanted = capability[0] * 10 + capability[1]
    fitting = [arch for arch in known if arch <= wanted]
    if not fitting:
        raise DeviceUnavailableError(
            f"NVRTC {toolkit()} does not support compute "
            f"capability {capability[0]}.{capability[1]}; use setting device=cpu."
        )
    kind = "sm" if wanted in known else "compute"
    own = "a" if capability == WGMMA_CAPABILITY and kind == "sm" else ""  # sm_90a has wgmma
    return [
        f"--gpu-architecture={kind}_{max(fitting)}{own}",
        f"-DELEMENT_{ELEMENTS[precision]}",
        "--std=c++17",
        *(["-DIN_BLOCKS"] if in_blocks else []),
    ]


def toolkit() -> str:
    """Return the compiler's version."""
    return ".".join(map(str, _call(nvrtc.nvrtcVersion)))


def newest_chip() -> tuple[int, int]:
    """Return the highest compute capability that the compiler supports."""
    newest = max(_call(nvrtc.nvrtcGetSupportedArchs))
    return newest // 10, newest % 10


def headers() -> Path:
    """Return the folder of the CUDA runtime's headers. Raises DeviceUnavailableError."""
    found = pathfinder.find_nvidia_header_directory("cudart")
    if found is None:
        raise DeviceUnavailableError(
            "The CUDA runtime headers are not installed; install the extra cuda12 or cuda13."
        )
    return Path(found)


def _compile(
    name: str,
    source: bytes,
    own: Mapping[str, bytes],
    options: list[str],
    instances: tuple[str, ...],
) -> Image:
    """Compile. own: kernel headers, in memory, as files of the folder would take precedence."""
    contents, names = [*own.values()], [header.encode() for header in own]
    program = _call(
        nvrtc.nvrtcCreateProgram, source, f"{name}.cu".encode(), len(own), contents, names
    )
    try:
        for instance in instances:
            _call(nvrtc.nvrtcAddNameExpression, program, instance.encode())
        [status] = nvrtc.nvrtcCompileProgram(
            program, len(options), [option.encode() for option in options]
        )
        _check_memory("nvrtcCompileProgram", status)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = bytearray(_call(nvrtc.nvrtcGetProgramLogSize, program))
            _call(nvrtc.nvrtcGetProgramLog, program, log)
            words = log.decode().strip("\0 \n")
            raise CudaError("nvrtcCompileProgram", f"{name}.cu: {words}", "report this message")
        is_ptx = "=compute_" in options[0]
        size = nvrtc.nvrtcGetPTXSize if is_ptx else nvrtc.nvrtcGetCUBINSize
        read = nvrtc.nvrtcGetPTX if is_ptx else nvrtc.nvrtcGetCUBIN
        image = bytearray(_call(size, program))
        _call(read, program, image)
        symbols = (_call(nvrtc.nvrtcGetLoweredName, program, each.encode()) for each in instances)
        names = (symbol.decode() for symbol in symbols)
        return Image(bytes(image), dict(zip(instances, names, strict=True)))
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    status, *results = function(*arguments)
    name = function.__name__
    _check_memory(name, status)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CudaError(name, status.name, "reinstall the extra cuda12 or cuda13")
    return results[0] if len(results) == 1 else tuple(results)


def _check_memory(name: str, status: Any) -> None:
    if status == nvrtc.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY:
        raise DeviceMemoryError(
            f"{name} ran out of host memory ({status.name}); "
            "end other programs or allow this one more host memory."
        )
