"""Unit files of systemd for a worker, a watched folder, a node, and a summary each morning."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias

ServiceKind: TypeAlias = Literal["worker", "watch", "node", "summary"]

FAILED = "cuda-cyclegan-failed@.service"
_Lines: TypeAlias = Sequence[tuple[str, str]]

_ALARM_SECONDS = 3600
"""Seconds after an alarm in which the same service raises no other."""
_OWN_FOLDERS = (Path("/var/lib/cuda-cyclegan"), Path("/var/cache/cuda-cyclegan"))
"""Folders that systemd makes for a service of the machine."""
_OUTPUTS = ("--html", "--json", "--report", "--output", "-o", "--log-file", "--folder")
"""Options whose paths the services write."""

_ABOUT: Mapping[ServiceKind, str] = {
    "worker": "Worker of cuda-cyclegan on %i",
    "watch": "Watched folder of cuda-cyclegan",
    "node": "DICOM node of cuda-cyclegan",
    "summary": "Summary of cuda-cyclegan's jobs",
}
_HARMLESS: _Lines = (
    ("NoNewPrivileges", "true"),
    ("LockPersonality", "true"),
    ("RestrictRealtime", "true"),
    ("RestrictSUIDSGID", "true"),
    ("SystemCallArchitectures", "native"),
    ("UMask", "0077"),
)
_OF_SYSTEM: _Lines = (
    ("ProtectSystem", "strict"),
    ("ProtectHome", "read-only"),
    ("PrivateTmp", "true"),
    ("ProtectClock", "true"),
    ("ProtectControlGroups", "true"),
    ("ProtectHostname", "true"),
    ("ProtectKernelLogs", "true"),
    ("ProtectKernelModules", "true"),
    ("ProtectKernelTunables", "true"),
    ("RestrictNamespaces", "true"),
    ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6 AF_NETLINK"),
)
"""Hardening that a user's own manager may lack the rights for. Libraries compile code while they
run, so MemoryDenyWriteExecute is not among it."""


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
        found = {self.unit: _text(self._sections())}
        if self.kind == "summary":
            found[self.enabled[0]] = _text(self._timer())
        if self.on_failure:
            found[FAILED] = _text(self._hook())
        return found

    def next_steps(self) -> Iterator[str]:
        """Return the commands that start the service."""
        manager = "systemctl" if self.is_system else "systemctl --user"
        if not self.is_system:
            yield "loginctl enable-linger"
        yield f"{manager} daemon-reload"
        yield f"{manager} enable --now {' '.join(self.enabled)}"

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

    def _sections(self) -> dict[str, _Lines]:
        unit = [("Description", _ABOUT[self.kind]), ("StartLimitIntervalSec", "0")]
        if self.is_system:
            unit += [("Wants", "network-online.target"), ("After", "network-online.target")]
        sections: dict[str, _Lines] = {
            "Unit": unit,
            "Service": [*self._running(), *self._place(), *self._alarm(), *self._confined()],
        }
        if self.kind != "summary":
            sections["Install"] = self._install()
        return sections

    def _install(self) -> _Lines:
        return [("WantedBy", "multi-user.target" if self.is_system else "default.target")]

    def _running(self) -> Iterator[tuple[str, str]]:
        start = [*self.program, *(("jobs", "summary") if self.kind == "summary" else (self.kind,))]
        words = [quoted(word) for word in (*start, *self.words)]
        if self.kind == "worker":
            words += ["--device", "%i"]
        if self.kind == "summary":
            yield "Type", "oneshot"
            yield "ExecStart", " ".join(words)
            return
        yield "Type", "notify"
        yield "ExecStart", " ".join(words)
        if self.kind == "node":
            yield "ExecReload", "/bin/kill -HUP $MAINPID"
        yield "Restart", "always" if self.kind == "node" else "on-failure"
        yield "RestartSec", "10"
        # A restart fixes neither a wrong command line nor a missing library.
        yield "RestartPreventExitStatus", "2 4"
        if self.kind == "watch":
            yield "SuccessExitStatus", "143"  # of a stop; the others end with 0
        else:
            yield "WatchdogSec", "5min"
        yield "TimeoutStartSec", "10min"
        # A worker finishes its running jobs; only then are its processes killed.
        yield "TimeoutStopSec", "30min" if self.kind == "worker" else "1min"
        yield "KillMode", "mixed"

    def _place(self) -> _Lines:
        """Return where it runs; elsewhere if its user may not enter that folder."""
        place = str(self.folder)
        is_needed = self.folder != Path("/") and place.isprintable()
        return [("WorkingDirectory", f"-{place.replace('%', '%%')}")] if is_needed else ()

    def _alarm(self) -> _Lines:
        """Return what starts the hook, also if the service is restarted, when systemd ignores
        OnFailure.
        """
        if not self.on_failure:
            return ()
        manager = "systemctl" if self.is_system else "systemctl --user"
        unit = FAILED.replace("@", "@%N")
        start = f"{manager} start --no-block '{unit}'"
        # With +, the manager's own rights: the service itself may start no units.
        return [("ExecStopPost", f'+/bin/sh -c "test $$SERVICE_RESULT = success || {start}"')]

    def _confined(self) -> Iterator[tuple[str, str]]:
        yield from _HARMLESS
        if not self.is_system:
            return
        yield "User", self.run_as
        yield "StateDirectory", "cuda-cyclegan"
        yield "StateDirectoryMode", "0700"
        yield "CacheDirectory", "cuda-cyclegan"
        yield "Environment", "XDG_STATE_HOME=%S/cuda-cyclegan XDG_CACHE_HOME=%C/cuda-cyclegan"
        yield from _OF_SYSTEM
        if self.kind != "worker":
            yield "PrivateDevices", "true"  # which hides GPUs
        bind = "CAP_NET_BIND_SERVICE" if self.kind == "node" else ""
        yield "CapabilityBoundingSet", bind
        if bind:
            yield "AmbientCapabilities", bind
        for folder in self.writable:
            yield "ReadWritePaths", quoted(str(folder))

    def _timer(self) -> dict[str, _Lines]:
        return {
            "Unit": [("Description", f"{_ABOUT['summary']} each morning")],
            "Timer": [("OnCalendar", f"*-*-* {self.at}:00"), ("Persistent", "true")],
            "Install": [("WantedBy", "timers.target")],
        }

    def _hook(self) -> dict[str, _Lines]:
        # While it is active, further failures start nothing: a service may fail again and again.
        shell = ["/bin/sh", "-c", f"({self.on_failure}\n); sleep {_ALARM_SECONDS}"]
        service = [
            ("Type", "exec"),
            ("Environment", "UNIT=%i"),
            ("ExecStart", " ".join(map(quoted, shell))),
        ]
        if self.is_system:
            service.append(("User", self.run_as))
        return {"Unit": [("Description", "Report that %i failed")], "Service": service}


def quoted(word: str) -> str:
    """Return a word of a command line as systemd reads it, without specifiers and variables."""
    plain = word.replace("%", "%%").replace("$", "$$")
    if plain and not set(plain) & set(" \t\n\"'\\;"):
        return plain
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _text(sections: Mapping[str, _Lines]) -> str:
    parts = (
        "\n".join([f"[{name}]", *(f"{key}={value}" for key, value in lines)])
        for name, lines in sections.items()
    )
    return "\n\n".join(parts) + "\n"
