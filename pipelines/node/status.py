"""What a node has received and sent, from its folder, whether it runs or not."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from .folder import is_running
from .inbox import StudyName, studies_in
from .ledger import NAME, StudyRecord, read


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node's folder at one moment.

    folder: its place. running: whether a node has it. studies: those on record. arriving: those in
    the inbox that were not looked at. bytes: of all objects in the inbox. confirmed: how many
    objects of a result its destination has, of results that are not sent as a whole.
    """

    folder: Path
    running: bool
    studies: tuple[StudyRecord, ...]
    arriving: tuple[StudyName, ...]
    bytes: int
    confirmed: Mapping[str, int]


def status_of(folder: Path) -> NodeStatus:
    """Raises ConfigError if no node ever had the folder, or OSError."""
    if not (folder / NAME).exists():
        raise ConfigError(
            f"No node has worked with {folder} yet; name its folder with setting folder."
        )
    studies, confirmed = read(folder / NAME, time.time())
    inside = studies_in(folder)
    known = {name for name, record in studies.items() if not record.emptied}
    return NodeStatus(
        folder,
        is_running(folder),
        tuple(studies.values()),
        tuple(study for study in inside if str(study) not in known),
        sum(inside.values()),
        {series: len(instances) for series, instances in confirmed.items()},
    )
