"""Grids, blocks and shared memory of every launch, on a card that is only described."""

import json
from pathlib import Path

import pytest
from support.described_cards import H200
from support.launch_geometry import PRECISIONS, SIZES, SPECS, lowered, summary

from cuda_cyclegan.engine.compiler.memory.fitting import Wanted

RECORDED = json.loads(Path(__file__).with_name("h200_launches.json").read_text())
"""What was measured to be fast on an H200."""


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", SPECS)
def test_launches_on_an_h200_are_those_that_were_measured(name, precision):
    for patch, batch in SIZES[name.split()[0]]:
        wanted = Wanted(patch, batch, precision, H200)
        recorded = RECORDED[f"{name} {precision} {'x'.join(map(str, patch))} x {batch}"]
        assert summary(lowered(name, wanted)) == recorded
