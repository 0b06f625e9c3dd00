"""The option --tiling, and --small-volume-padding with a number."""

import pytest
import typer

from cuda_cyclegan.cli.options.model import parsed_padding, parsed_tiling, parsed_training_patch
from cuda_cyclegan.cli.render.models import spelled_tiling
from cuda_cyclegan.engine.model.tiling import OWN, Tiling

TILINGS = {
    "monai": OWN["monai"],
    "even": OWN["even"],
    "nnunet": OWN["nnunet"],
    "torchio": OWN["torchio"],
    "monai:overlap=0.5,blend=gaussian,sigma=0.2": Tiling(
        "monai", (0.5, 0.5, 0.5), "gaussian", (0.2, 0.2, 0.2)
    ),
    "monai:overlap=0.5/0.25/0": Tiling("monai", (0.5, 0.25, 0.0), "constant"),
    "torchio:overlap=0.25,blend=hann,border": Tiling(
        "torchio", (0.25, 0.25, 0.25), "hann", border=True
    ),
}


@pytest.mark.parametrize("text", TILINGS)
def test_a_tiling_is_read_and_spelled(text: str) -> None:
    found = parsed_tiling(text)
    assert found == TILINGS[text]
    assert found is not None
    assert parsed_tiling(spelled_tiling(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        *("", "other", "monai:overlap=1", "monai:overlap=0.1/0.2", "monai:blend=x"),
        *("even:sigma=0", "torchio:border=1", "monai:0.5", "monai:overlap=nan"),
    ],
)
def test_no_other_tiling_is(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parsed_tiling(text)


def test_paddings_and_patches() -> None:
    assert [*map(parsed_padding, (None, "edge", "-1", "0"))] == [None, "edge", -1.0, 0.0]
    for text in ("", "half", "1,2", "inf"):
        with pytest.raises(typer.BadParameter):
            parsed_padding(text)
    assert parsed_training_patch("whole") == (None, True)
    assert parsed_training_patch("16,8,8") == ((16, 8, 8), False)
