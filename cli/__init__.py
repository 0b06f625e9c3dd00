"""Commands and what they show: typer and rich, no arithmetic and no file formats."""
