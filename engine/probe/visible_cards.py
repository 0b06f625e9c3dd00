"""Which cards CUDA shows a process, as the variable CUDA_VISIBLE_DEVICES has it."""

import os

VARIABLE = "CUDA_VISIBLE_DEVICES"

_NO_CARD = "-1"


def visible_names() -> tuple[str, ...] | None:
    """The names that the variable gives the cards of this process, in the order in which CUDA
    counts them: numbers, or UUIDs of cards or of parts of them (MIG); None where it is not set.
    """
    value = os.environ.get(VARIABLE)
    return None if value is None else tuple(name.strip() for name in value.split(","))


def visible_name(index: int) -> str:
    """What the variable has to be for a process that is to see one card of this process alone."""
    names = visible_names()
    if names is None:
        return str(index)
    is_sound = len(set(names)) == len(names)  # else CUDA shows none
    return names[index] if is_sound and index < len(names) else _NO_CARD
