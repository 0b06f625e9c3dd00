"""Generators that are known but not supported, each with a sentence that says what it is."""

import re

from .unwrap import Tensors

_SENTENCES = {
    r"(block\d+\.conv\d|first)\.weight$": (
        "This is already a model of this program; use it as it is."
    ),
    r"encoders\..*|out_conv\.": (
        "This is a MONAI residual U-Net as in cyclegan3d (encoders, decoders, out_conv); its "
        "decoder is not one that this program computes."
    ),
    r"(input_block|bottleneck|upsamples)\.": (
        "This is MONAI's DynUNet; only the ResNet and U-Net generators of the CycleGAN family are "
        "supported."
    ),
    r"(prev_conv|enc_\d+\.featureConv)": (
        "This generator normalises after its activation and samples only in-plane (prev_conv, "
        "enc_N.featureConv); that order is not supported."
    ),
    r".*\.filt$": (
        "This generator samples through anti-aliasing blur filters, as in contrastive unpaired "
        "translation; these are not supported."
    ),
    r"(in_ab|downs\.\d+\.(down_conv_ab|core)|downconv_ab|upconv_ab|core\.)": (
        "This is a V-Net or partially invertible ResNet of ganslate; only its Resnet3D and Unet3D "
        "are supported."
    ),
    r"(conv_block1\.conv1|deconv_block\d|encoder1\.unet_downblock)": (
        "This is a U-Net of separate encoder and decoder blocks; of the U-Nets only the nested "
        "ones of the CycleGAN family are supported."
    ),
    r".*(attention|attn|transformer|swin)": (
        "This generator has attention layers, which are not supported."
    ),
}


def foreign_sentence(tensors: Tensors) -> str | None:
    """What the network is, if it is a known one that cannot be imported."""
    for pattern, sentence in _SENTENCES.items():
        if any(re.match(pattern, key, re.IGNORECASE) for key in tensors):
            return sentence
    return None
