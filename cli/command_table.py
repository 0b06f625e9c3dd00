"""Commands by name, each loaded on first use, so that one does not import the others."""

from collections import UserDict
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from .errors import errors_reported
from .options.help_panels import PanelledCommand
from .options.spelling import spelled_out

_MODULES = {
    "translate": "translate",
    "plan": "plan",
    "discover": "discover",
    "evaluate": "evaluate",
    "report": "report",
    "view": "view",
    "model": "model",
    "submit": "queue.submit",
    "worker": "queue.worker",
    "jobs": "queue.jobs",
    "watch": "queue.watch",
    "node": "queue.node",
    "service": "queue.service",
    "doctor": "doctor",
    "bench": "bench.bench",
}
"""Modules of `commands` by command: each has a function of that name, or the `app` of a group."""

_WITH_PANELS = {"translate", "plan", "submit", "watch", "node"}


class CommandTable(TyperGroup):
    """The program's commands, in the order in which its help lists them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _LoadedCommands(_MODULES)

    def invoke(self, ctx: Any) -> Any:
        """Run the named command. An OSError about a path, even from a mere check that the path
        exists, is reported in one sentence.
        """
        try:
            return super().invoke(ctx)
        except OSError:
            with errors_reported(verbose=False):
                raise


class _LoadedCommands(UserDict[str, Any]):
    """The commands themselves, by the name that loads them."""

    def __getitem__(self, name: str) -> Any:
        return _loaded(name)


@cache
def _loaded(name: str) -> Any:
    module: Any = import_module(f".commands.{_MODULES[name]}", __package__)
    command = typer.main.get_group(module.app) if hasattr(module, "app") else _alone(name, module)
    command.name = name
    return command


def _alone(name: str, module: Any) -> Any:
    alone = typer.Typer(rich_markup_mode=None, add_completion=False)
    kind = PanelledCommand if name in _WITH_PANELS else TyperCommand
    alone.command(cls=kind, epilog=module.EXAMPLE)(spelled_out(getattr(module, name)))
    return typer.main.get_command(alone)
