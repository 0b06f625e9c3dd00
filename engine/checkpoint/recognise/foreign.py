"""What a file's names say it is, where it is a known network that cannot be imported."""

import re
from collections.abc import Iterable, Mapping

from ...errors import quoted
from ..read.tensors import StoredTensor
from .evidence import BY_ONNX

_UNTOLD = f"whose weights do not tell all of it; {BY_ONNX}"
_SENTENCES = {
    r"(block\d+\.conv\d|first)\.weight$": (
        "This is already a model of this program; use it as it is."
    ),
    r"(.*/)?(enc_content|enc_style)[./]": (
        "This is MUNIT's generator, of content and style encoders; it makes many images of one, "
        "and is not supported."
    ),
    r"model\.\d+\.(conv\.unit\d|submodule|adn|residual)|model\.0\.residual\.": (
        f"This is MONAI's UNet of residual units, {_UNTOLD}."
    ),
    r"(in_tr|down_tr\d+|up_tr\d+|out_tr)\.": (f"This is a V-Net, {_UNTOLD}."),
    r"encoders\..*|out_conv\.": (
        "This is a MONAI residual U-Net as in cyclegan3d (encoders, decoders, out_conv), "
        f"{_UNTOLD}."
    ),
    r"(input_block|bottleneck|upsamples)\.": (f"This is MONAI's DynUNet, {_UNTOLD}."),
    r"(prev_conv|enc_\d+\.featureConv)": (
        "This generator normalises after its activation and samples only in-plane (prev_conv, "
        f"enc_N.featureConv), which weights do not tell; {BY_ONNX}."
    ),
    r"(in_ab|downs\.\d+\.(down_conv_ab|core)|downconv_ab|upconv_ab|core\.)": (
        "This is a V-Net or partially invertible ResNet of ganslate; of its checkpoints only those "
        f"of Resnet3D and Unet3D are read, so {BY_ONNX}."
    ),
    r"(conv_block1\.conv1|deconv_block\d|encoder1\.unet_downblock)": (
        f"This is a U-Net of separate encoder and decoder blocks, {_UNTOLD}."
    ),
    r".*(attention|attn|transformer|swin)": (
        "This generator has attention layers, which are not supported."
    ),
}


def foreign_sentence(names: Iterable[str]) -> str | None:
    """What the network is, if it is a known one that cannot be imported."""
    names = tuple(names)
    for pattern, sentence in _SENTENCES.items():
        if any(re.match(pattern, name, re.IGNORECASE) for name in names):
            return sentence
    return None


def unknown_sentence(tensors: Mapping[str, StoredTensor]) -> str:
    """What can be said of a network whose layers are those of no known generator."""
    shown = ", ".join(quoted(key) for key in sorted(tensors)[:4])
    kernels = {tensor.shape[2:] for tensor in tensors.values() if len(tensor.shape) == 5}
    if kernels == {(1, 1, 1)}:
        return (
            f"All convolutions here look at single voxels ({shown}, ...), as a pixel "
            "discriminator's do; import the file of the generator, usually named ...net_G..."
        )
    if all(key.count(".") == 2 and key.startswith("model.") for key in tensors):
        return (
            f"This is a plain chain of convolutions ({shown}, ...), as a PatchGAN discriminator "
            "is; import the file of the generator, usually named ...net_G..."
        )
    return (
        f"The names in this file ({shown}, ...) are not those of a known 3-D CycleGAN generator; "
        f"if it is a generator, {BY_ONNX}."
    )
