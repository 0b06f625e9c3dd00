"""Commands that name all missing options."""

from typing import Any

import typer
from typer.core import TyperCommand


class FullCommand(TyperCommand):
    """Command that names all missing options at once, not only the first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words. Raises UsageError."""
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if type(error).__name__ != "MissingParameter":
                raise
            typed, *_ = self.make_parser(ctx).parse_args(words)
            missing = [
                one.get_error_hint(ctx)
                for one in self.get_params(ctx)
                if one.required and one.consume_value(ctx, typed)[0] is None
            ]
            if len(missing) < 2:
                raise
            return ctx.fail(f"Missing {', '.join(missing[:-1])} and {missing[-1]}.")
