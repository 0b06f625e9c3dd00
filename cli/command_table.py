"""Commands by name, each loaded on first use, so that one does not import the others."""

from collections import UserDict
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from .errors import errors_reported
from .options.help_panels import PanelledCommand
from .options.label_lists import BidsAppCommand
from .options.missing_options import FullCommand
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
    "bids-app": "bids_app",
    "slicer-module": "slicer_module",
}
"""Modules of `commands` by command: each has a function of that name, with _ for -, or the `app` of
a group."""

_OTHER_WORDS = {
    **dict.fromkeys(("-V", "-v", "version"), "--version"),
    **dict.fromkeys(("help", "-?"), "--help"),
    **dict.fromkeys(("predict", "infer", "inference", "run", "convert", "apply"), "translate"),
    **{
        word: f"model {word}"
        for word in ("import", "inspect", "verify", "calibrate", "edit", "combine")
    },
    **dict.fromkeys(("queue", "status", "list", "ls"), "jobs"),
    **dict.fromkeys(("show", "open", "viewer"), "view"),
    **dict.fromkeys(("check", "info", "devices"), "doctor"),
}
"""Words that users of other programs may try first, and this program's own."""

_KINDS: dict[str, type[FullCommand]] = {
    **dict.fromkeys(("translate", "plan", "submit", "watch", "node"), PanelledCommand),
    "bids-app": BidsAppCommand,
}
"""Classes of the commands that are not plain ones."""


class CommandTable(TyperGroup):
    """The program's commands, in the order in which its help lists them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _LoadedCommands(_MODULES)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words; those of other programs are answered with this one's."""
        word = args[0] if args and not ctx.resilient_parsing else ""
        if word not in self.commands and (meant := _OTHER_WORDS.get(word)):
            what = "option" if word.startswith("-") else "command"
            ctx.fail(f"No such {what} {word!r}. Did you mean {meant!r}?")
        return super().parse_args(ctx, args)

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
    kind = _KINDS.get(name, FullCommand)
    function = getattr(module, name.replace("-", "_"))
    alone.command(cls=kind, epilog=module.EXAMPLE)(spelled_out(function))
    return typer.main.get_command(alone)
