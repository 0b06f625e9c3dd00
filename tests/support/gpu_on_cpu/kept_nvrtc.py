"""NVRTC whose machine code is kept between runs of the tests, by all that it is made from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.gpu_on_cpu.kept_files import kept_file


class KeptNvrtc:
    """The bindings of NVRTC; a program that has compiled in an earlier run is not compiled again.

    What the compiler refuses is refused anew each time.
    """

    def __init__(self, bindings: Any) -> None:
        self._bindings = bindings
        self._version: tuple[int, ...] = bindings.nvrtcVersion()[1:]
        self._sources: dict[int, tuple[object, ...]] = {}
        self._images: dict[int, bytes] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bindings, name)

    def nvrtcCreateProgram(self, *sources: Any) -> Any:  # noqa: N802
        status, program = self._bindings.nvrtcCreateProgram(*sources)
        self._sources[int(program)] = sources
        return status, program

    def nvrtcCompileProgram(self, program: Any, count: int, options: Sequence[bytes]) -> Any:  # noqa: N802
        def make(file: Path) -> None:
            [status] = self._bindings.nvrtcCompileProgram(program, count, options)
            if status != self._bindings.nvrtcResult.NVRTC_SUCCESS:
                raise _RefusedError(status)
            file.write_bytes(self._image(program, "PTX" if b"=compute_" in options[0] else "CUBIN"))

        name = f"{self._sources[int(program)][1].decode()}.bin"
        content = self._version, self._sources[int(program)], options
        try:
            self._images[int(program)] = kept_file(name, content, make).read_bytes()
        except _RefusedError as refused:
            return (refused.status,)
        return (self._bindings.nvrtcResult.NVRTC_SUCCESS,)

    def _image(self, program: Any, kind: str) -> bytes:
        _, size = getattr(self._bindings, f"nvrtcGet{kind}Size")(program)
        image = bytearray(size)
        getattr(self._bindings, f"nvrtcGet{kind}")(program, image)
        return bytes(image)

    def nvrtcGetCUBINSize(self, program: Any) -> Any:  # noqa: N802
        return self._bindings.nvrtcResult.NVRTC_SUCCESS, len(self._images[int(program)])

    def nvrtcGetCUBIN(self, program: Any, image: bytearray) -> Any:  # noqa: N802
        image[:] = self._images[int(program)]
        return (self._bindings.nvrtcResult.NVRTC_SUCCESS,)

    nvrtcGetPTXSize, nvrtcGetPTX = nvrtcGetCUBINSize, nvrtcGetCUBIN  # noqa: N815


class _RefusedError(Exception):
    def __init__(self, status: Any) -> None:
        super().__init__(status)
        self.status = status
