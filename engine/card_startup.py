"""What is begun on cards, and what they are called, before much is loaded."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager

from .probe.gpus import VARIABLE, early_context, shown_cards, usable_cards, visible_name


def several_cards(asked: str) -> tuple[str, ...]:
    """Names of the cards behind a name, where these are more than one; starts no driver.

    Whether they can be used is not known yet.
    """
    kind, _, numbers = asked.partition(":")
    if kind != "cuda":
        return ()
    chosen = dict.fromkeys(map(int, numbers.split(","))) if numbers else range(shown_cards())
    return tuple(f"cuda:{index}" for index in chosen) if len(chosen) > 1 else ()


def seen_alone(device: str) -> tuple[str, Mapping[str, str]]:
    """The name of a device in a process that sees no other card, and the variables for that.

    The driver of such a process starts one card, not all.
    """
    kind, _, number = device.partition(":")
    return ("cuda:0", {VARIABLE: visible_name(int(number))}) if kind == "cuda" else (device, {})


def see_alone(device: str) -> str:
    """Have this process see no other card than a device, before it starts the driver.

    Returns the device's name from then on. For a process that was started before it was known which
    one is its; of others, who starts them says so.
    """
    alone, variables = seen_alone(device)
    os.environ.update(variables)
    return alone


_TELLING = 8
"""Digits at the beginning of a UUID that tell the cards of a machine apart."""


def name_on_machine(device: str) -> str:
    """What a device is called by all processes, as batch systems show each the card it may use as
    its number 0; a card that cannot be used keeps its name. Starts the driver.
    """
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return device
    uuids = [card.uuid for card in usable_cards() if card.index == int(number)]
    return f"cuda:{uuids[0][:_TELLING]}" if uuids else device


def early_card_context(asked: str) -> AbstractContextManager[None]:
    """Have the context of the card behind a name made during the block, if that is one card, and
    the CUDA packages loaded. Several are opened by a process each.
    """
    return early_context(lambda: _only_card(asked), _card_opener)


def _card_opener() -> object:
    """What opens a network on a card; to have it loads the CUDA packages."""
    from .cuda.patches.generator import open_cuda_generator

    return open_cuda_generator


def _only_card(asked: str) -> int | None:
    kind, _, numbers = asked.partition(":")
    if kind not in ("auto", "cuda"):
        return None
    if numbers:
        return int(numbers) if numbers.isdigit() else None
    usable = [card.index for card in usable_cards()]
    return usable[0] if len(usable) == 1 or (usable and asked == "auto") else None
