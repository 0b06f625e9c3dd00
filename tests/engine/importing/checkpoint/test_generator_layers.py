"""Weights that a checkpoint stores in parts come out as PyTorch computes with them."""

from pathlib import Path

import numpy as np
import pytest
from support.lazy_modules import nn, torch

from cuda_cyclegan.engine.importing.checkpoint.generator_layers import NetworkTensors
from cuda_cyclegan.engine.importing.checkpoint.recognise import networks
from cuda_cyclegan.engine.importing.checkpoint_file import read_checkpoint


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("channels", [(4, 2), (2, 4), (4, 4)])
@pytest.mark.parametrize("kind", ["Conv3d", "ConvTranspose3d"])
@pytest.mark.parametrize("wrap", ["hook", "parametrization"])
def test_spectral_norm_is_that_of_the_axis_of_the_output(
    tmp_path: Path, wrap: str, kind: str, channels: tuple[int, int]
) -> None:
    """The shapes do not tell which axis that is where as many channels go in as come out."""
    norms = nn.utils if wrap == "hook" else nn.utils.parametrizations
    torch.manual_seed(1)
    layer = norms.spectral_norm(getattr(nn, kind)(*channels, 3))
    patch = torch.zeros(1, channels[0], 4, 4, 4)
    for _ in range(4):  # it finds its vectors as it trains
        layer.train()(patch)
    layer.eval()(patch)
    torch.save(nn.Sequential(layer).state_dict(), tmp_path / "layer.pt")
    [group] = networks(read_checkpoint(tmp_path / "layer.pt"))
    [found] = NetworkTensors.of(group.tensors).convolutions.values()
    np.testing.assert_allclose(found.read("weight"), layer.weight.detach().numpy(), rtol=1e-5)
