"""cuDNN has plans for all convolutions of generators on chips that nobody here has a card of."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.driver_in_memory import needs_compiler, output_of

CHIPS = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")


@needs_compiler
@pytest.mark.skipif(find_spec("cudnn") is None, reason="cuDNN is not installed")
def test_every_convolution_has_a_plan(tmp_path: Path) -> None:
    """But for bf16 on the oldest chips, which do not compute in it: the own kernel does."""
    found = json.loads(output_of(tmp_path, "support.described_chips", *CHIPS))
    assert list(found) == list(CHIPS)
    for chip, precisions in found.items():
        for precision, networks in precisions.items():
            for network, counts in networks.items():
                assert counts, (chip, precision, network)
                has_plans = {count > 0 for count in counts}
                expected = (chip, precision) != ("7.5", "bf16")
                assert has_plans == {expected}, (chip, precision, network, counts)
