"""From a checkpoint to a generator's spec and weights, with an account of what is not certain."""

import re

from ...errors import CheckpointError, quoted
from ...network.architectures import Spec, build, out_of_bounds
from ...network.graph import Network
from ..read.checkpoint import Checkpoint
from ..read.tensors import check_amount
from .layers import KeyMapping, NetworkTensors, convolution_weights, recognise_norm
from .networks import Tensors, generator_tensors
from .recognition import Choices, Evidence, Recognised
from .resnet import match_resnet, resnet_spec
from .unet import LAYOUT, match_unet, unet_spec

_SHOWN_OPTIONS = ("netG", "norm", "padding_type", "direction", "ngf", "no_dropout")


def recognise(checkpoint: Checkpoint, choices: Choices) -> Recognised:
    """The generator in a checkpoint, matched against every supported layout.

    Raises CheckpointError if there is none, if it is a variant that is not supported, or if a
    choice has no meaning for it. Open questions come back in `undecided`.
    """
    evidence = Evidence(choices)
    try:
        return _recognise(checkpoint, evidence)
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.path}: {error}") from error


def _recognise(checkpoint: Checkpoint, evidence: Evidence) -> Recognised:
    tensors = generator_tensors(checkpoint, evidence)
    if sentence := foreign_sentence(tensors):
        raise CheckpointError(sentence)
    modules = NetworkTensors.of(tensors, evidence)
    norm = recognise_norm(modules, evidence, checkpoint.options)
    spec: Spec
    if resnet := match_resnet(modules):
        layout, slots = resnet.name, resnet.slots
        spec = resnet_spec(resnet, modules, norm, evidence)
    elif unet := match_unet(modules):
        layout, slots = LAYOUT, unet
        spec = unet_spec(unet, modules, norm, evidence, checkpoint.options)
    else:
        raise CheckpointError(_unknown(tensors))
    _show_options(checkpoint, evidence)
    evidence.refuse_unasked()
    for name, reason in out_of_bounds(spec):
        raise CheckpointError(f"The generator's {name.replace('_', ' ')} {reason}.")
    check_amount(tensors.values())
    return Recognised(
        spec=spec,
        weights=_network(spec, slots, modules).weights,
        layout=layout,
        told=tuple(evidence.told),
        defaulted=tuple(evidence.defaulted),
        undecided=tuple(evidence.undecided),
        checkpoint=checkpoint,
        choices=evidence.choices,
    )


def _network(spec: Spec, slots: tuple[KeyMapping, ...], modules: NetworkTensors) -> Network:
    weights = convolution_weights(slots, modules, spec.norm)
    try:
        return Network(build(spec), weights)
    except ValueError as error:
        raise CheckpointError(f"The weights do not fit together: {error}.") from error


def _show_options(checkpoint: Checkpoint, evidence: Evidence) -> None:
    options = checkpoint.options
    for name in _SHOWN_OPTIONS:
        if value := options.values.get(name):
            evidence.tell(f"option {name}", value, f"written in {', '.join(options.files)}")


def _unknown(tensors: Tensors) -> str:
    shown = ", ".join(quoted(key) for key in sorted(tensors)[:4])
    plain = all(key.count(".") == 2 and key.startswith("model.") for key in tensors)
    if plain:
        return (
            f"This is a plain chain of convolutions ({shown}, ...), as a PatchGAN discriminator "
            "is; import the file of the generator, usually named ...net_G..."
        )
    return f"The names in this file ({shown}, ...) are not those of a known 3-D CycleGAN generator."


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
