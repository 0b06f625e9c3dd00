"""A folder with checkpoints that torch wrote, and the model commands run in it."""

import re
import shlex
from pathlib import Path

from support.lazy_modules import torch
from support.lazy_modules import torch_generators as generators
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app

DATA = (
    "--source T1 --target CT --intensity-in percentile:0.5,99.5 --intensity-out window:-1000,2000 "
    "--axes RAS --spacing 1,1,1.5 --patch 32,32,32"
)
ZEROS = "--code mfazampour"
"""The code of `unpadded_resnet`."""


def run(*words: object) -> Result:
    """A model command."""
    return CliRunner().invoke(app, ["model", *map(str, words)])


def flags(text: str) -> set[str]:
    """Options named in a text."""
    return set(re.findall(r"--[a-z-]+", text))


class ModelFolder:
    """A folder with checkpoints, and the commands run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "model.safetensors"

    def checkpoint(self, content: object, name: str = "latest_net_G_A.pth") -> Path:
        path = self.folder / name
        torch.save(content, path)
        return path

    def import_(self, checkpoint: Path, options: str = "", data: str = DATA) -> Result:
        words = shlex.split(f"{data} {options}")
        return run("import", checkpoint, "--output", self.output, *words)

    def sound(self) -> Path:
        """A model file made from a checkpoint of a known code."""
        module = generators.trained(generators.unpadded_resnet())
        result = self.import_(self.checkpoint(module.state_dict()), ZEROS)
        assert result.exit_code == 0, result.stderr
        return self.output

    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}
