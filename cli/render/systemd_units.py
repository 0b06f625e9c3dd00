"""Unit files of systemd for a worker, a watched folder, a node, and a summary each morning."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias

from .documents import rendered_text

ServiceKind: TypeAlias = Literal["worker", "watch", "node", "summary"]

FAILED = "cuda-cyclegan-failed@.service"

_ALARM_SECONDS = 3600
"""Seconds after an alarm in which the same service raises no other."""
_OWN_FOLDERS = (Path("/var/lib/cuda-cyclegan"), Path("/var/cache/cuda-cyclegan"))
"""Folders that systemd makes for a service of the machine."""
_OUTPUTS = ("--audit", "--folder", "--html", "--json", "--log-file", "--output", "--report", "-o")
"""Options whose paths the services write."""

_ABOUT: Mapping[ServiceKind, str] = {
    "worker": "Worker of cuda-cyclegan on %i",
    "watch": "Watched folder of cuda-cyclegan",
    "node": "DICOM node of cuda-cyclegan",
    "summary": "Summary of cuda-cyclegan's jobs",
}


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """Description of a service to install.

    kind: command that it runs. program: command line of the program, without the command. words:
    further words of the command. is_system: whether it is one of the machine, not of a user.
    run_as: user account of a service of the machine. devices: of a worker; each gets an instance.
    writable: folders that a service of the machine may write to, besides its own. on_failure:
    command for the shell that runs when the service has failed; "" is none. at: time of day of the
    summary. folder: folder from which relative paths of the command start.
    """

    kind: ServiceKind
    program: Sequence[str]
    words: Sequence[str] = ()
    is_system: bool = False
    run_as: str = "cuda-cyclegan"
    devices: Sequence[str] = ("cpu",)
    writable: Sequence[Path] = ()
    on_failure: str = ""
    at: str = "07:00"
    folder: Path = Path("/")

    @property
    def unit(self) -> str:
        """Name of the unit's file."""
        return f"cuda-cyclegan-{self.kind}{'@' if self.kind == 'worker' else ''}.service"

    @property
    def enabled(self) -> list[str]:
        """Units to enable."""
        if self.kind == "worker":
            return [self.unit.replace("@", f"@{device}") for device in self.devices]
        return [self.unit.replace(".service", ".timer") if self.kind == "summary" else self.unit]

    def files(self) -> dict[str, str]:
        """Return the texts of all unit files by name."""
        place = str(self.folder)
        found = {
            self.unit: self._text(
                "service.service.j2",
                command=self._command(),
                place=place.replace("%", "%%") if place.isprintable() and place != "/" else "",
                manager=self._manager,
                failed=FAILED.replace("@", "@%N"),
                writable=[quoted(str(folder)) for folder in self.writable],
            )
        }
        if self.kind == "summary":
            found[self.enabled[0]] = self._text("summary.timer.j2")
        if self.on_failure:
            shell = ("/bin/sh", "-c", f"({self.on_failure}\n); sleep {_ALARM_SECONDS}")
            command = " ".join(map(quoted, shell))
            found[FAILED] = self._text("failed.service.j2", command=command)
        return found

    def _text(self, template: str, **values: object) -> str:
        return rendered_text(template, plan=self, about=_ABOUT[self.kind], **values)

    def _command(self) -> str:
        command = ("jobs", "summary") if self.kind == "summary" else (self.kind,)
        words = [quoted(word) for word in (*self.program, *command, *self.words)]
        return " ".join([*words, *(("--device", "%i") if self.kind == "worker" else ())])

    @property
    def _manager(self) -> str:
        return "systemctl" if self.is_system else "systemctl --user"

    def next_steps(self) -> Iterator[str]:
        """Return the commands that start the service."""
        if not self.is_system:
            yield "loginctl enable-linger"
        yield f"{self._manager} daemon-reload"
        yield f"{self._manager} enable --now {' '.join(self.enabled)}"

    def warnings(self) -> Iterator[str]:
        """Return what would keep a service of the machine from writing its output."""
        if not self.is_system:
            return
        for folder in self.writable:
            if not folder.is_dir():
                yield f"folder {folder} does not exist; create it before the service starts."
        allowed = (*_OWN_FOLDERS, *self.writable)
        for path in self._outputs():
            if not any(map(path.is_relative_to, allowed)):
                folder = path if path.is_dir() else path.parent
                yield f"the service may not write {path}; add --writable {folder}."

    def _outputs(self) -> Iterator[Path]:
        """Return the paths that its words name for output."""
        for word, following in pairwise((*self.words, "")):
            name, has_value, value = word.partition("=")
            place = value if has_value else following
            if name in _OUTPUTS and place not in ("", "-"):
                yield self.folder / place


def quoted(word: str) -> str:
    """Return a word of a command line as systemd reads it, without specifiers and variables."""
    plain = word.replace("%", "%%").replace("$", "$$")
    if plain and not set(plain) & set(" \t\n\"'\\;"):
        return plain
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
