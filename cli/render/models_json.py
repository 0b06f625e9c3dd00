"""What model files and checkpoints hold, as JSON for scripts."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...engine.importing.evidence import Fact, Question
from ...engine.model.model_card import card_as_json
from ...engine.model.model_file import Model
from ...engine.model.reference import bf16_error
from ...pipelines.model_import.found import FoundNetwork
from ...pipelines.model_import.inspection import HeldCheckpoint, network_facts, parameter_count
from .terminal.settings import flagged, option


def text(found: Model | HeldCheckpoint | FoundNetwork, file: Path) -> str:
    """One JSON object; `kind` tells models, checkpoints and networks apart."""
    match found:
        case Model():
            described = _model(found)
        case HeldCheckpoint():
            described = _checkpoint(found)
        case FoundNetwork():
            described = _network(found)
    return json.dumps({"file": str(file), **described}, indent=2)


def _model(model: Model) -> dict[str, Any]:
    return {
        "kind": "model",
        "sha256": model.sha256,
        "established": model.card.established.in_words,
        "parameters": parameter_count(model.network),
        "reference_extents": model.reference_input.shape[2:],
        "bf16_error": bf16_error(model),
        "network": asdict(network_facts(model.network, model.card.patch)),
        "card": card_as_json(model.card),
    }


def _network(found: FoundNetwork) -> dict[str, Any]:
    return {
        "kind": "network",
        "sha256": found.sha256,
        "format": found.kind,
        "network": asdict(network_facts(found.network)),
        "told": [_finding(finding) for finding in found.told],
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
        "obstacle": found.obstacle and flagged(found.obstacle),
    }
    if generator:
        described["generator"] = {
            "layout": generator.match.layout,
            "fitting_codes": generator.fitting_codes,
            "left": [asdict(part) for part in generator.left],
            "told": [_finding(finding) for finding in generator.told],
            "assumed": [_finding(finding) for finding in generator.defaulted],
            "undecided": [_question(question) for question in generator.undecided],
        }
    return described


def _finding(finding: Fact) -> dict[str, str]:
    return {**asdict(finding), "reason": flagged(finding.reason)}


def _question(question: Question) -> dict[str, Any]:
    described = asdict(question)
    return {"field": described.pop("field"), "flag": option(question.field), **described}
