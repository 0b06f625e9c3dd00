"""Help of each command: complete, with an example, without delay; and completion in a shell."""

import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.cli.errors import Exit

REPORTS_PAGE = Path(__file__).parents[2] / "docs" / "reports.md"
WIDTH = 80
"""Width of a terminal, of which click leaves two columns free."""
LONGEST_SECONDS = 0.3
PARSER_ALONE = """
import typer
def main(number: int = 1): ...
typer.run(main)
"""


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command after its words, those of groups too."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


@pytest.fixture(scope="module")
def all_commands() -> dict[tuple[str, ...], Any]:
    return dict(commands(typer.main.get_command(app)))


@pytest.fixture(scope="module")
def pages(all_commands: dict[tuple[str, ...], Any]) -> dict[tuple[str, ...], str]:
    """The help of every command in a terminal of WIDTH columns."""
    shown = {
        path: CliRunner().invoke(app, [*path, "--help"], terminal_width=WIDTH - 2)
        for path in all_commands
    }
    assert {path: page.stderr for path, page in shown.items() if page.exit_code} == {}
    return {path: page.stdout for path, page in shown.items()}


def test_every_command_has_a_page_with_an_example(pages: dict[tuple[str, ...], str]) -> None:
    wrong = [
        f"{' '.join(path)}: {fault}" for path, page in pages.items() for fault in faults(path, page)
    ]
    assert not wrong, "\n".join(wrong)


def faults(path: tuple[str, ...], page: str) -> list[str]:
    """Return what a help page lacks."""
    _, heading, example = page.partition("\n  Example")
    overview = page.partition("Commands:")[2].partition("Example")[0]
    checks = {
        "no example": bool(heading),
        "the example is of another command": " ".join(("cuda-cyclegan", *path)) in example,
        "a line is too wide": max(map(len, page.splitlines())) <= WIDTH,
        "a first sentence is cut off": "..." not in overview,
        "what it tells the shell is not said": bool(overview) or "Exit status:" in page,
    }
    return [fault for fault, is_right in checks.items() if not is_right]


def test_the_usage_shows_of_which_argument_there_may_be_several(
    all_commands: dict[tuple[str, ...], Any], pages: dict[tuple[str, ...], str]
) -> None:
    wrong: list[str] = []
    for path, command in all_commands.items():
        usage = pages[path].partition("\n\n")[0].replace("[ARGS]...", "")
        takes_several = any(
            each.nargs == -1 for each in command.params if each.param_type_name == "argument"
        )
        if ("..." in usage) != takes_several:
            wrong.append(" ".join(path))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("command", ["translate", "plan", "submit", "watch"])
def test_options_stand_in_panels_and_none_is_lost(
    command: str, all_commands: dict[tuple[str, ...], Any], pages: dict[tuple[str, ...], str]
) -> None:
    shown = pages[(command,)]
    panels = ["Input:", "Result:", "Speed:", "DICOM:", "Queue:", "Reports:", "Other options:"]
    found = [line for line in shown.splitlines() if line in panels]
    assert found == [panel for panel in panels if panel in found], "in their order"
    assert {"Input:", "Result:", "DICOM:"} <= set(found)
    others = shown.partition("Other options:")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in others.splitlines() if "--" in line] == ["-h,"]
    for option in all_commands[(command,)].params:
        if option.param_type_name == "option":
            assert option.opts[0] in shown


def test_a_range_is_stated_once(pages: dict[tuple[str, ...], str]) -> None:
    shown = " ".join(pages[("translate",)].split())
    assert "--spread 2..8" in shown
    assert "deviation as maps. [default: 0]" in shown
    assert "[default: 0; x>=0]" in shown, "where the value's name states none"


SHORT = {"--input": "-i", "--output": "-o", "--model": "-m", "--device": "-d"}


def test_a_short_name_that_one_command_has_all_have(
    all_commands: dict[tuple[str, ...], Any],
) -> None:
    without = [
        f"{' '.join(path)}: {name} without {SHORT[name]}"
        for path, command in all_commands.items()
        for option in command.params
        for name in SHORT.keys() & set(option.opts)
        if SHORT[name] not in option.opts
    ]
    assert not without, "\n".join(without)


def test_the_page_on_reports_lists_every_exit_status() -> None:
    table = REPORTS_PAGE.read_text("utf-8").partition("| exit status |")[2].partition("\n\n")[0]
    listed = [row.split("|")[1] for row in table.splitlines()[2:]]
    assert sorted(int(status) for cell in listed for status in cell.split(",")) == sorted(Exit)


def test_help_imports_nothing_heavy(all_commands: dict[tuple[str, ...], Any]) -> None:
    heavy = {"numpy", "PIL", "rich", "nibabel", "onnxruntime", "pydicom", "SimpleITK"}
    heavy |= {"cuda_cyclegan.engine.devices", "cuda_cyclegan.engine.cuda.user_cache"}
    program = (
        "import sys, contextlib, io\nfrom cuda_cyclegan.cli.app import app\n"
        f"for path in {[*all_commands]!r}:\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "        app([*path, '--help'])\n"
        f"print(sorted({heavy!r} & {{*sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    "path",
    [
        (),
        *(
            pytest.param(path, marks=pytest.mark.slow)
            for path in (("translate",), ("model", "import"))
        ),
    ],
    ids=" ".join,
)
def test_help_is_there_at_once(path: tuple[str, ...], tmp_path: Path) -> None:
    """Others slow a machine down: then in twice what a program takes that has the parser alone.

    The first of the tries compiles the modules, as an installation does.
    """
    page = ["-m", "cuda_cyclegan", *path, "--help"]
    tries = ((worked(page, tmp_path), worked(["-c", PARSER_ALONE], tmp_path)) for _ in range(6))
    assert any(whole < max(LONGEST_SECONDS, 2 * alone) for whole, alone in tries)


def worked(arguments: list[str], compiled: Path) -> float:
    """Seconds that the processor spends on it: those on a busy machine's wall are of others."""
    environment = {
        **os.environ,
        "PYTHONPYCACHEPREFIX": str(compiled),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.fixture(scope="module")
def completion(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script that a shell evaluates, and a call of its function for COMP_WORDS."""
    program = tmp_path_factory.mktemp("completion") / "cuda-cyclegan"
    program.write_text(f"#!{sys.executable}\nfrom cuda_cyclegan.cli.app import main\nmain()\n")
    program.chmod(0o755)
    asked = os.environ | {"_CUDA_CYCLEGAN_COMPLETE": "source_bash"}
    script = subprocess.check_output([program], env=asked, text=True)
    return f"{script}\n_cuda_cyclegan_completion {shlex.quote(str(program))}"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        (["translate", "--prec"], {"--precision"}),
        (["translate", "--precision", ""], {"fp16", "bf16", "tf32", "fp32"}),
        (["translate", "--device", "cu"], {"cuda", "cuda:0"}),
        (["submit", "scans", "--priority", ""], {"urgent", "normal", "low"}),
        (["jobs", "s"], {"show", "summary"}),
        (["model", "i"], {"import", "inspect"}),
    ],
)
def test_bash_completes_commands_options_and_choices(
    completion: str, line: list[str], offered: set[str]
) -> None:
    words = shlex.join(["cuda-cyclegan", *line])
    script = (
        f"COMP_WORDS=({words}) COMP_CWORD={len(line)}\n"
        f'{completion}\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == offered, done.stderr
