"""Kernels that were compiled ahead and are installed with the package, an archive per chip.

    python -m cuda_cyclegan.engine.cuda.kernel_archive 8.6 9.0

writes archives for these compute capabilities to kernels/compiled/, from where `python -m build`
takes them into a wheel. The members of an archive are images of one kernel instance each; its
comment states the sources and the compiler. If the sources differ from those installed, as after an
edit, the archive is not used and NVRTC compiles what is launched.
"""

import hashlib
import json
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

from ..compiler.kernel_source import FOLDER
from ..compiler.kernels.table import KERNELS
from ..compiler.tensors import ELEMENTS
from ..options import BF16_CAPABILITY, Precision
from .nvrtc import Image, compiled, toolkit

ARCHIVES = FOLDER / "compiled"
_DAMAGE = KeyError, OSError, BadZipFile, zlib.error, ValueError, RuntimeError
"""Errors by which a damaged archive, or an encrypted or otherwise packed member, shows."""


@dataclass(frozen=True, slots=True)
class KernelArchive:
    """An open archive of one chip and one element type; a context manager.

    key: changes with the machine code of its images.
    """

    key: str
    _file: ZipFile

    @classmethod
    def open(
        cls, precision: Precision, capability: tuple[int, int], folder: Path | None = None
    ) -> Self | None:
        """Return the archive for a GPU, or None if there is none of the installed sources."""
        path = (folder or ARCHIVES) / _name(precision, capability)
        with suppress(*_DAMAGE, TypeError), ExitStack() as opened:
            file = opened.enter_context(ZipFile(path))
            if json.loads(file.comment)["sources"] == sources_sha256():
                text = f"{path.name} {file.comment.decode()}"
                opened.pop_all()
                return cls(hashlib.sha256(text.encode()).hexdigest()[:24], file)
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def image(self, source: str, instance: str | None, *, in_blocks: bool) -> Image | None:
        """Return an instance's image of kernels/SOURCE.cu; None if it is missing or damaged."""
        with suppress(*_DAMAGE):
            return Image.read(self._file.read(_member(source, instance, in_blocks)))
        return None


def sources_sha256() -> str:
    """Return the hash of all kernels and their headers."""
    whole = hashlib.sha256()
    for path in sorted([*FOLDER.glob("*.cu"), *FOLDER.glob("*.cuh")]):
        whole.update(path.name.encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()


def write_archive(folder: Path, precision: Precision, capability: tuple[int, int]) -> Path:
    """Compile every instance that a GPU may launch and return the path of their archive."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _name(precision, capability)
    comment = json.dumps({"sources": sources_sha256(), "compiler": f"NVRTC {toolkit()}"})
    with ZipFile(path, "w", ZIP_DEFLATED, compresslevel=9) as file:
        for source, instance, in_blocks in _instances(precision, capability):
            chosen = (instance,) if instance else ()
            image = compiled(source, precision, capability, instances=chosen, in_blocks=in_blocks)
            file.writestr(_member(source, instance, in_blocks), image.stored())
        file.comment = comment.encode()
    return path


def _instances(
    precision: Precision, capability: tuple[int, int]
) -> Iterator[tuple[str, str | None, bool]]:
    for spec in KERNELS.values():
        for in_blocks in (False, True) if spec.in_blocks else (False,):
            for instance in spec.instances_for(precision, capability):
                yield spec.source, instance, in_blocks


def _name(precision: Precision, capability: tuple[int, int]) -> str:
    return f"sm_{capability[0]}{capability[1]}-{ELEMENTS[precision].lower()}.zip"


def _member(source: str, instance: str | None, in_blocks: bool) -> str:
    return f"{source}{' in blocks' if in_blocks else ''}: {instance or 'whole file'}"


def main(capabilities: list[str]) -> None:
    """Write the archives of compute capabilities such as "9.0", in parallel."""
    from concurrent.futures import ProcessPoolExecutor  # late: loads multiprocessing

    elements: Mapping[str, Precision] = {element: each for each, element in ELEMENTS.items()}
    chips = [tuple(map(int, text.split("."))) for text in capabilities]
    tasks: list[tuple[Precision, tuple[int, int]]] = [
        (precision, (major, minor))
        for major, minor in chips
        for element, precision in elements.items()
        if element != "BF16" or (major, minor) >= BF16_CAPABILITY
    ]
    with ProcessPoolExecutor() as pool:
        runs = [pool.submit(write_archive, ARCHIVES, *task) for task in tasks]
        for run in runs:
            path = run.result()
            print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main(sys.argv[1:])
