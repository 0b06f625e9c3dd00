"""The command line: what a user types and what a terminal shows; typer and rich.

May import every package below. Must contain no arithmetic on voxels and no file formats; nothing
below may import it.
"""
