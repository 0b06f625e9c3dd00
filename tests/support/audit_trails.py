"""Messages of audit trails on disk."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cuda_cyclegan.pipelines.node.audit_files import trail_files


def lines(folder: Path) -> list[dict[str, Any]]:
    """Messages of a trail, oldest first."""
    return [
        json.loads(line)
        for file in trail_files(folder)
        for line in file.read_text("utf-8").splitlines()
    ]


def codes(folder: Path) -> list[str]:
    """Codes of the messages of a trail."""
    return [code(one) for one in lines(folder)]


def code(message: Mapping[str, Any]) -> str:
    """Event, its types, and its outcome, such as 110100/110120/0."""
    event = message["EventIdentification"]
    kinds = [kind["csd-code"] for kind in event["EventTypeCode"]]
    return "/".join([event["EventID"]["csd-code"], *kinds, event["EventOutcomeIndicator"]])
