"""Sentences on networks that cannot be imported, recognised by the names of their tensors."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from ...errors import quoted
from ..torch_files import StoredTensor
from .evidence import BY_EXPORT

_UNDETERMINED = f"whose weights do not define it completely; {BY_EXPORT}"
_GANSLATE = (
    "This is a V-Net or partially invertible ResNet of ganslate; of its checkpoints only those "
    f"of Resnet3D and Unet3D are read, so {BY_EXPORT}."
)
_MEDNEXT = f"This is a MedNeXt, {_UNDETERMINED}."

_NETWORKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "This is already a model of this program; use it as it is.",
        (r"first\.weight$", r"last\.weight$", r"(block|down)\d+\."),
    ),
    (
        "This is MUNIT's generator, of content and style encoders; it makes many images of one, "
        "and is not supported.",
        (r"enc_content\.", r"enc_style\.", r"dec\."),
    ),
    (
        "This is a checkpoint of nnU-Net, which its plans define; name the model folder, with "
        f"plans.json and dataset.json. Without them, and of version 1, {BY_EXPORT}.",
        (r"encoder\.stages\.\d+\.", r"decoder\.seg_layers\.\d+\."),
    ),
    (_MEDNEXT, (r"stem\.weight", r"enc_block_0\.", r"bottleneck\.", r"dec_block_0\.")),
    (_MEDNEXT, (r"stem\.weight", r"enc_stages\.0\.", r"bottleneck\.", r"dec_stages\.0\.")),
    (
        f"This is MONAI's DynUNet, {_UNDETERMINED}.",
        (r"input_block\.conv1\.", r"bottleneck\.conv1\.", r"upsamples\.0\.", r"output_block\."),
    ),
    (
        f"This is MONAI's AttentionUnet, {_UNDETERMINED}.",
        (r"model\.1\.attention\.W_g\.", r"model\.1\.attention\.psi\.", r"model\.1\.upconv\."),
    ),
    (
        f"This is MONAI's UNet of residual units, {_UNDETERMINED}.",
        (r"model\.0\.(conv\.unit0|residual)\.", r"model\.1\.submodule\.", r"model\.2\."),
    ),
    (
        f"This is MONAI's UNet, {_UNDETERMINED}.",
        (r"model\.0\.conv\.weight", r"model\.1\.submodule\.", r"model\.2\.(0\.)?conv\."),
    ),
    (
        f"This is MONAI's BasicUNet, {_UNDETERMINED}.",
        (r"conv_0\.conv_0\.", r"down_1\.convs\.", r"upcat_1\.", r"final_conv\."),
    ),
    (
        f"This is MONAI's SegResNet, {_UNDETERMINED}.",
        (r"convInit\.conv\.", r"down_layers\.0\.", r"up_layers\.0\.", r"conv_final\."),
    ),
    (
        f"This is MONAI's AutoEncoder, {_UNDETERMINED}.",
        (r"encode\.encode_0\.", r"decode\.decode_0\."),
    ),
    (
        f"This is a V-Net, {_UNDETERMINED}.",
        (r"in_tr\.", r"down_tr\d+\.", r"up_tr\d+\.", r"out_tr\."),
    ),
    (
        "This is a MONAI residual U-Net as in cyclegan3d (encoders, decoders, out_conv), "
        f"{_UNDETERMINED}.",
        (r"encoders\.\d+\.", r"decoders\.\d+\.upsample_conv\.", r"out_conv\."),
    ),
    (
        f"This is the U-Net of vox2vox (down, mid, up, final), {_UNDETERMINED}.",
        (r"down1\.model\.", r"mid1\.", r"up1\.model\.", r"final\."),
    ),
    (
        "This generator normalises after its activation and samples only in-plane (prev_conv, "
        f"enc_N.featureConv), which the weights do not show; {BY_EXPORT}.",
        (r"prev_conv\.featureConv\.", r"enc_1\.featureConv\.", r"syn_head\.featureConv\."),
    ),
    (_GANSLATE, (r"in_ab\.", r"downs\.0\.down_conv_ab\.", r"out_ab\.")),
    (_GANSLATE, (r"downconv_ab\.", r"core\.", r"upconv_ab\.")),
    (
        f"This generator has attention layers; if they are gates of convolutions, {BY_EXPORT}, but "
        "attention over all voxels of a patch is not supported.",
        (r"(?i:.*(attention|attn|transformer|swin))",),
    ),
)
"""Sentence and signature: patterns that must all match, below one prefix."""

_MOST_NAMES = 5000
_DEEPEST_PREFIX = 4


def foreign_sentence(states: Iterable[Iterable[str]]) -> str | None:
    """Return a sentence on a known network that cannot be imported, or None.

    states: names of the tensors of each state of the file. Every pattern of a network's signature
    must match below the same prefix, such as `net.` in a Lightning state.
    """
    shortened = [tuple(islice(names, _MOST_NAMES)) for names in states]
    return next(
        (
            sentence
            for sentence, signature in _NETWORKS
            if any(_has(names, signature) for names in shortened)
        ),
        None,
    )


def _has(names: tuple[str, ...], signature: tuple[str, ...]) -> bool:
    prefixes: set[str] | None = None
    for pattern in map(re.compile, signature):
        found = {
            name[:start] for name in names for start in _starts(name) if pattern.match(name, start)
        }
        prefixes = found if prefixes is None else prefixes & found
        if not prefixes:
            return False
    return True


def _starts(name: str) -> Iterator[int]:
    """Yield where the name of a tensor in its network may start: after a few prefixes."""
    at = 0
    for _ in range(_DEEPEST_PREFIX + 1):
        yield at
        at = name.find(".", at) + 1
        if not at:
            return


def unknown_sentence(tensors: Mapping[str, StoredTensor]) -> str:
    """Return a sentence on a network whose layers match no known generator."""
    shown = ", ".join(quoted(key) for key in sorted(tensors)[:4])
    kernels = {tensor.shape[2:] for tensor in tensors.values() if len(tensor.shape) == 5}
    if kernels == {(1, 1, 1)}:
        return (
            f"All convolutions here have a kernel of one voxel ({shown}, ...), as in a pixel "
            "discriminator; import the file of the generator, usually named ...net_G..."
        )
    if all(_OF_CHAIN.fullmatch(key) for key in tensors):
        return (
            f"This is a plain chain of convolutions ({shown}, ...), as in a PatchGAN "
            "discriminator; import the file of the generator, usually named ...net_G..."
        )
    return (
        f"The names in this file ({shown}, ...) match no known 3D CycleGAN generator; if it is a "
        f"generator, {BY_EXPORT}."
    )


_OF_CHAIN = re.compile(r"model\.\d+\.\w+")
"""Name of a tensor in an nn.Sequential called model, as PatchGAN discriminators are."""
