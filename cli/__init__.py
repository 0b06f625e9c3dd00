"""The command line: what a user types and what a terminal shows; typer and rich.

May import every package below. No arithmetic on voxels, no file formats, and nothing below may
import it.
"""
