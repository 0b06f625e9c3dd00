"""The commands by name, each loaded when it is asked for: one needs nothing of the others."""

from collections import UserDict
from collections.abc import Callable
from functools import cache
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from .options.help_panels import PanelledCommand


def _translate() -> Any:
    from .commands.translate import EXAMPLE, translate

    return _command(translate, EXAMPLE, PanelledCommand)


def _plan() -> Any:
    from .commands.plan import EXAMPLE, plan

    return _command(plan, EXAMPLE, PanelledCommand)


def _discover() -> Any:
    from .commands.discover import EXAMPLE, discover

    return _command(discover, EXAMPLE)


def _evaluate() -> Any:
    from .commands.evaluate import EXAMPLE, evaluate

    return _command(evaluate, EXAMPLE)


def _report() -> Any:
    from .commands.report import EXAMPLE, report

    return _command(report, EXAMPLE)


def _model() -> Any:
    from .commands.model import app

    return typer.main.get_group(app)


def _submit() -> Any:
    from .commands.queue.submit import EXAMPLE, submit

    return _command(submit, EXAMPLE, PanelledCommand)


def _worker() -> Any:
    from .commands.queue.worker import EXAMPLE, worker

    return _command(worker, EXAMPLE)


def _jobs() -> Any:
    from .commands.queue.jobs import app

    return typer.main.get_group(app)


def _watch() -> Any:
    from .commands.queue.watch import EXAMPLE, watch

    return _command(watch, EXAMPLE, PanelledCommand)


def _node() -> Any:
    from .commands.queue.node import EXAMPLE, node

    return _command(node, EXAMPLE, PanelledCommand)


def _doctor() -> Any:
    from .commands.doctor import EXAMPLE, doctor

    return _command(doctor, EXAMPLE)


def _bench() -> Any:
    from .commands.bench.bench import EXAMPLE, bench

    return _command(bench, EXAMPLE)


_COMMANDS: dict[str, Callable[[], Any]] = {
    "translate": _translate,
    "plan": _plan,
    "discover": _discover,
    "evaluate": _evaluate,
    "report": _report,
    "model": _model,
    "submit": _submit,
    "worker": _worker,
    "jobs": _jobs,
    "watch": _watch,
    "node": _node,
    "doctor": _doctor,
    "bench": _bench,
}


class CommandTable(TyperGroup):
    """The program's commands, in the order in which its help lists them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _LoadedCommands(_COMMANDS)


class _LoadedCommands(UserDict[str, Any]):
    """The commands themselves, by the name that loads them."""

    def __getitem__(self, name: str) -> Any:
        return _loaded(name)


@cache
def _loaded(name: str) -> Any:
    command = _COMMANDS[name]()
    command.name = name
    return command


def _command(
    run: Callable[..., None], example: str, kind: type[TyperCommand] = TyperCommand
) -> Any:
    alone = typer.Typer(rich_markup_mode=None, add_completion=False)
    alone.command(cls=kind, epilog=example)(run)
    return typer.main.get_command(alone)
