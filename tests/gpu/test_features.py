"""Specs beyond plain generators, computed on the GPU as PyTorch computes them."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from support.network_features import FEATURES, patches_for, trained
from support.poisoned_memory import poison_generator

from cuda_cyclegan.engine.network.architectures import Spec
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.engine.options import Precision

PRECISIONS: tuple[Precision, ...] = ("fp16", "bf16", "tf32", "fp32")
LIMITS = {"fp16": 5e-3, "bf16": 3e-2, "tf32": 2e-3, "fp32": 1e-5}
EXTENTS = 24, 16, 32


@cache
def expected(name: str, width: int) -> tuple[Spec, Network, FloatArray, FloatArray]:
    """A feature's network of this width, patches, and what PyTorch makes of them in float64."""
    from support.features_in_torch import in_torch

    spec = structs.replace(FEATURES[name], width=width)
    network, patches = trained(spec), patches_for(spec, EXTENTS, batch=2)
    return spec, network, patches, in_torch(spec, network, patches)


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled kernels, kept between tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize(("precision", "width"), [*((p, 32) for p in PRECISIONS), ("fp32", 8)])
def test_a_feature_on_the_gpu(kept: Path, name: str, precision: Precision, width: int) -> None:
    from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
    from cuda_cyclegan.engine.cuda.patches.patch_generator import open_cuda_generator
    from cuda_cyclegan.engine.options import SearchSettings

    _, network, patches, wanted = expected(name, width)
    options = CudaOptions(precision, cache=kept, search=SearchSettings("off"))
    with open_cuda_generator(network, options, EXTENTS, 2) as generator:
        poison_generator(generator)
        made = generator(patches)
    error = np.linalg.norm(made - wanted) / np.linalg.norm(wanted)
    print(f"{precision} {name}, width {width}: relative error {error:.2e}")
    assert error < LIMITS[precision]
