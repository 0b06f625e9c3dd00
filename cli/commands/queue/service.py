"""`cuda-cyclegan service`: units of systemd that run the program's services."""

import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ....io.files.own_files import this_user
from ...errors import errors_reported
from ...options.config import named_config
from ...options.values import checked_device, wrong_value
from ...render.systemd_units import ServiceKind, ServicePlan
from ...render.terminal import print_line
from ...render.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SYSTEM, USER = Path("/etc/systemd/system"), Path("systemd/user")

EXAMPLE = """\b
Example:
  cuda-cyclegan service install worker --dry-run
"""

app = typer.Typer(help="Install services.", epilog=EXAMPLE, rich_markup_mode=None)


@app.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]
    """Install services for systemd."""


@app.command(
    epilog="""\b
Examples:
  cuda-cyclegan service install worker --dry-run
  cuda-cyclegan service install watch -- /incoming --model m.safetensors \\
      --output /results
  cuda-cyclegan --config my.toml service install node --system
  cuda-cyclegan service install summary --writable /reports \\
      -- --html /reports/%Y-%m-%d.html
"""
)
def install(
    context: typer.Context,
    kind: Annotated[
        ServiceKind,
        typer.Argument(
            metavar="worker|watch|node|summary",
            help="The command to run; summary is 'jobs summary' each morning.",
        ),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- WORDS...]", help="Further arguments of the command."),
    ] = None,
    system: Annotated[
        bool | None,
        typer.Option(
            "--system/--user",
            help="--system: a service of the machine, in /etc/systemd/system. --user: a service of "
            "your account.  [default: --system if you are root]",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "-d",
            metavar="auto|cpu|cuda:N[,M]",
            help="Device of the worker; one service per GPU.",
        ),
    ] = "auto",
    run_as: Annotated[
        str,
        typer.Option(
            metavar="USER", help="With --system: the user account that the service runs as."
        ),
    ] = "cuda-cyclegan",
    writable: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="With --system: a folder that the service may write to, such as the folder of "
            "results; repeatable.",
        ),
    ] = None,
    on_failure: Annotated[
        str,
        typer.Option(
            metavar="COMMAND", help="Command to run when the service failed; $UNIT is its name."
        ),
    ] = "",
    at: Annotated[
        str, typer.Option(metavar="HH:MM", help="Time of the summary, for 'install summary'.")
    ] = "07:00",
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the units there instead of systemd's folder."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the units only.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace existing units.")] = False,
) -> None:
    """Write unit files into systemd's folder; start nothing.

    Prints the commands that start the service. A worker finishes its running jobs before it stops.
    A service that does not report to systemd for 5 minutes is restarted.

    Exit status: 0 written, or printed; 2 wrong usage, or a unit already exists.
    """
    with errors_reported(verbose=False):
        _check_queue(words or ())
        is_system = this_user() == 0 if system is None else system
        plan = ServicePlan(
            kind,
            _program(named_config(context)),
            words or (),
            is_system=is_system,
            run_as=run_as,
            devices=_devices(checked_device(device)) if kind == "worker" else (),
            writable=[path.absolute() for path in writable or ()],
            on_failure=on_failure,
            at=_checked_time(at),
            folder=Path.cwd(),
        )
        if dry_run:
            for name, text in plan.files().items():
                print_line(f"# {name}\n{text}", sys.stdout)
        else:
            _write(folder or _folder(is_system=is_system), plan.files(), force=force)
        for warning in plan.warnings():
            print_line(printable(f"Warning: {warning}"), sys.stderr)
        print_line("To start it, run:", sys.stderr)
        for command in plan.next_steps():
            print_line(f"  {command}", sys.stderr)


def _check_queue(words: "Sequence[str]") -> None:
    """Raise BadParameter for a queue with a password, which everybody could read in the unit, and
    QueueError for one that is no valid address, which may have one.
    """
    from ....pipelines.jobs.queue.location import has_password, queue_place

    for word, following in pairwise((*words, "")):
        name, is_joined, value = word.partition("=")
        if name == "--queue":
            queue = value if is_joined else following
            queue_place(queue)
            if has_password(queue):
                raise wrong_value("--queue", _NO_PASSWORD)


_NO_PASSWORD = (
    "all users of this machine can read units and their passwords; keep this one in a file that "
    "only the service's user can read (mode 0600, a line HOST:PORT:DATABASE:USER:PASSWORD), and "
    "name that: postgresql://USER@HOST/DATABASE?passfile=/etc/cuda-cyclegan.pgpass"
)


def _program(config: Path | None) -> list[str]:
    """Return the command line of this program, with the config file that was named."""
    script = Path(sys.executable).with_name("cuda-cyclegan")
    program = [str(script)] if script.exists() else [sys.executable, "-m", "cuda_cyclegan"]
    return [*program, *(["--config", str(config.absolute())] if config else [])]


def _devices(asked: str) -> list[str]:
    from .worker import devices_of

    return devices_of(asked)


def _folder(*, is_system: bool) -> Path:
    if is_system:
        return SYSTEM
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / USER


def _write(folder: Path, files: "Mapping[str, str]", *, force: bool) -> None:
    from ....io.files.documents import write_document

    for name in files:
        if (folder / name).exists() and not force:
            raise wrong_value("--force", f"{folder / name} exists; give --force to replace it.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_document(folder / name, text.encode())
        print_line(f"Written: {printable(str(folder / name))}", sys.stdout)


def _checked_time(text: str) -> str:
    hours, _, minutes = text.partition(":")
    is_time = len(text) == len("HH:MM") and hours.isdecimal() and minutes.isdecimal()
    if not is_time or int(hours) > 23 or int(minutes) > 59:
        raise wrong_value("--at", f"{text!r} is not a time such as 07:00.")
    return text
