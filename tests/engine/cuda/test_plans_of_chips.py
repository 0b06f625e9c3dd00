"""cuDNN has plans for all convolutions of generators on chips that nobody here has a GPU of, and
makes them by their names.
"""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.described_gpus import DESCRIBED
from support.driver_in_memory import needs_compiler, output_of


@needs_compiler
@pytest.mark.skipif(find_spec("cudnn") is None, reason="cuDNN is not installed")
def test_every_convolution_has_plans_and_their_names_make_them(tmp_path: Path) -> None:
    """Exception: bf16 on the oldest chips, which do not compute in it; the custom kernel does."""
    found = json.loads(output_of(tmp_path, "support.described_chips", *DESCRIBED))
    assert list(found) == list(DESCRIBED)
    for gpu, precisions in found.items():
        is_old = DESCRIBED[gpu].capability < (8, 0)
        for precision, networks in precisions.items():
            for network, plans in networks.items():
                counts = [count for count, _, _ in plans]
                assert counts, (gpu, precision, network)
                has_plans = {count > 0 for count in counts}
                expected = not (is_old and precision == "bf16")
                assert has_plans == {expected}, (gpu, precision, network, counts)
                assert not [why for _, _, failed in plans for why in failed]
                assert any(made for _, made, _ in plans) == expected, (gpu, precision, network)
