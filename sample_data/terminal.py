"""Draw terminal.svg: the first commands with an own model, each with the screen that it left.

    python sample_data/terminal.py

They run one after another in a terminal of 100 columns (tmux must be installed), in a new folder
that holds the sample's scan, checkpoint and reference.
"""

import io
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
COLUMNS, ROWS = 100, 80
MODEL = "--model t1-to-t2.safetensors --output results"
COMMANDS = (
    "cuda-cyclegan model import latest_net_G_A.pth --reference reference.npz \\\n"
    "    --output t1-to-t2.safetensors --source T1 --target T2 --axes RAS --spacing 2,2,2 \\\n"
    "    --patch 48,48,48 --intensity-in percentile:0,99.9 --intensity-out window:0,1000",
    f"cuda-cyclegan plan scans {MODEL}",
    f"cuda-cyclegan translate scans {MODEL}",
)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(HERE / "scans", folder / "scans")
        for file in ("latest_net_G_A.pth", "reference.npz"):
            shutil.copy(HERE / "training" / file, folder)
        screens = [
            screen(command, folder, folder / f"terminal{at}") for at, command in enumerate(COMMANDS)
        ]
    picture = Console(record=True, width=COLUMNS, file=io.StringIO())
    for command, shown in zip(COMMANDS, screens, strict=True):
        picture.print(Text(f"$ {command}", style="bold"))
        picture.print(Text.from_ansi(shown), end="\n\n")
    picture.save_svg(str(HERE / "terminal.svg"), title="cuda-cyclegan")


def screen(command: str, folder: Path, socket: Path) -> str:
    """Return what `command` leaves on a terminal, with its colours."""
    program = Path(sys.executable).parent / "cuda-cyclegan"
    line = command.replace("cuda-cyclegan", shlex.quote(str(program)), 1)
    session = ("tmux", "-S", str(socket))
    script = f"clear; {line}; tmux wait-for -S done; sleep 60"
    opened = ["new-session", "-d", "-s", "picture", "-x", str(COLUMNS), "-y", str(ROWS)]
    subprocess.run([*session, "-f", os.devnull, *opened, script], cwd=folder, check=True)
    try:
        subprocess.run([*session, "wait-for", "done"], check=True)
        shown = subprocess.run(
            [*session, "capture-pane", "-e", "-p", "-t", "picture"],
            check=True,
            capture_output=True,
            text=True,
        )
    finally:
        subprocess.run([*session, "kill-server"], check=False)
    return shown.stdout.rstrip()


if __name__ == "__main__":
    main()
