"""Files that the user names as an output: never over another one unasked, never half written."""

from pathlib import Path

from ...io.files.atomic import whole_file
from ...io.files.parts import NO_GATE, Gate
from ..errors import OccupiedError


def check_free(target: Path, *, replace: bool, sources: tuple[Path, ...]) -> None:
    """Raise OccupiedError if `target` is a folder, a source, or there and not to be replaced."""
    if target.is_dir():
        raise OccupiedError(f"{target} is a folder; give setting output the name of a file in it.")
    if any(source.exists() and target.exists() and target.samefile(source) for source in sources):
        raise OccupiedError(f"{target} would be overwritten by its own result; choose another.")
    if target.exists() and not replace:
        raise OccupiedError(f"{target} is there already; choose another name or say setting force.")


def save(target: Path, content: bytes, gate: Gate = NO_GATE) -> None:
    """Write a file whole or not at all; raises WriteError."""
    with whole_file(target, gate) as part, part.open("r+b") as file:
        file.write(content)
