"""`model inspect --json`; its fields are a promise to scripts."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..engine.card_json import card_to_json
from ..engine.model import Model
from ..pipelines.inspecting import HeldCheckpoint, parameter_count


def text(found: Model | HeldCheckpoint, file: Path) -> str:
    """One JSON object; `kind` tells models from checkpoints."""
    described = _model(found) if isinstance(found, Model) else _checkpoint(found)
    return json.dumps({"file": str(file), **described}, indent=2)


def _model(model: Model) -> dict[str, Any]:
    return {
        "kind": "model",
        "sha256": model.sha256,
        "parameters": parameter_count(model),
        "reference_extents": model.reference_input.shape[2:],
        "card": json.loads(card_to_json(model.card)),
    }


def _checkpoint(found: HeldCheckpoint) -> dict[str, Any]:
    checkpoint, generator = found.checkpoint, found.generator
    described: dict[str, Any] = {
        "kind": "checkpoint",
        "sha256": checkpoint.sha256,
        "format": checkpoint.kind,
        "networks": [asdict(network) for network in found.networks],
        "set_aside": checkpoint.set_aside,
        "options": dict(checkpoint.options.values),
        "obstacle": found.obstacle,
    }
    if generator:
        described["generator"] = {
            "layout": generator.layout,
            "told": [asdict(finding) for finding in generator.told],
            "assumed": [asdict(finding) for finding in generator.defaulted],
            "undecided": [asdict(question) for question in generator.undecided],
        }
    return described
