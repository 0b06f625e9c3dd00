"""NVRTC whose machine code is kept between runs of the tests, by all that it is made from."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from support.gpu_on_cpu.kept_files import kept_file

from cuda_cyclegan.engine.cuda.nvrtc import Image


class KeptNvrtc:
    """The bindings of NVRTC; a program that has compiled in an earlier run is not compiled again.

    What the compiler refuses is refused anew each time.
    """

    def __init__(self, bindings: Any) -> None:
        self._bindings = bindings
        self._version: tuple[int, ...] = bindings.nvrtcVersion()[1:]
        self._sources: dict[int, tuple[object, ...]] = {}
        self._instances: dict[int, list[bytes]] = {}
        self._images: dict[int, Image] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bindings, name)

    def nvrtcCreateProgram(self, *sources: Any) -> Any:  # noqa: N802
        status, program = self._bindings.nvrtcCreateProgram(*sources)
        self._sources[int(program)], self._instances[int(program)] = sources, []
        return status, program

    def nvrtcAddNameExpression(self, program: Any, instance: bytes) -> Any:  # noqa: N802
        self._instances[int(program)].append(instance)
        return self._bindings.nvrtcAddNameExpression(program, instance)

    def nvrtcCompileProgram(self, program: Any, count: int, options: Sequence[bytes]) -> Any:  # noqa: N802
        instances = self._instances[int(program)]

        def make(file: Path) -> None:
            [status] = self._bindings.nvrtcCompileProgram(program, count, options)
            if status != self._bindings.nvrtcResult.NVRTC_SUCCESS:
                raise _RefusedError(status)
            code = self._code(program, "PTX" if b"=compute_" in options[0] else "CUBIN")
            file.write_bytes(Image(code, dict(self._symbols(program, instances))).stored())

        name = f"{self._sources[int(program)][1].decode()}.bin"
        content = self._version, self._sources[int(program)], options, instances
        try:
            stored = kept_file(name, content, make).read_bytes()
        except _RefusedError as refused:
            return (refused.status,)
        self._images[int(program)] = Image.read(stored)
        return (self._bindings.nvrtcResult.NVRTC_SUCCESS,)

    def _symbols(self, program: Any, instances: list[bytes]) -> Iterator[tuple[str, str]]:
        for instance in instances:
            _, symbol = self._bindings.nvrtcGetLoweredName(program, instance)
            yield instance.decode(), symbol.decode()

    def _code(self, program: Any, kind: str) -> bytes:
        _, size = getattr(self._bindings, f"nvrtcGet{kind}Size")(program)
        code = bytearray(size)
        getattr(self._bindings, f"nvrtcGet{kind}")(program, code)
        return bytes(code)

    def nvrtcGetLoweredName(self, program: Any, instance: bytes) -> Any:  # noqa: N802
        symbol = self._images[int(program)].symbols[instance.decode()]
        return self._bindings.nvrtcResult.NVRTC_SUCCESS, symbol.encode()

    def nvrtcGetCUBINSize(self, program: Any) -> Any:  # noqa: N802
        return self._bindings.nvrtcResult.NVRTC_SUCCESS, len(self._images[int(program)].code)

    def nvrtcGetCUBIN(self, program: Any, image: bytearray) -> Any:  # noqa: N802
        image[:] = self._images[int(program)].code
        return (self._bindings.nvrtcResult.NVRTC_SUCCESS,)

    nvrtcGetPTXSize, nvrtcGetPTX = nvrtcGetCUBINSize, nvrtcGetCUBIN  # noqa: N815


class _RefusedError(Exception):
    def __init__(self, status: Any) -> None:
        super().__init__(status)
        self.status = status
