"""The command line's entry point."""

import typer

app = typer.Typer(name="cuda-cyclegan", no_args_is_help=True)


def main() -> None:
    """Run the command line."""
    app()
