"""The options file that training code of the CycleGAN family leaves beside its checkpoints."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_NAMES = ("train_opt.txt", "opt.txt", "test_opt.txt")
_LARGEST = 1 << 20
_LINE = re.compile(r"^\s*(\w+)\s*:\s*(.*?)\s*(?:\[default:.*)?$")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the training (and test) run by name, and the files they were read from."""

    values: Mapping[str, str] = field(default_factory=dict[str, str])
    files: tuple[str, ...] = ()


def read_options(folder: Path) -> Options:
    """Options from all known files in `folder`; a later file never overrides an earlier one."""
    values: dict[str, str] = {}
    files: list[str] = []
    for name in _NAMES:
        path = folder / name
        try:
            if not path.is_file() or path.stat().st_size > _LARGEST:
                continue
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # evidence, not a condition: an unreadable one is as good as none
        files.append(name)
        for line in text.splitlines():
            if match := _LINE.match(line):
                values.setdefault(match[1], match[2])
    return Options(values, tuple(files))
