"""Known training repositories: what their generators compute, and in which file.

Each row was read from the repository's own source and is compared in the tests with PyTorch modules
written from it. docs/training-codes.md shows the table.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ...errors import CheckpointError
from ...network.layers import PadMode
from .evidence import U_NET, NormStatistics, Reading
from .generator_layers import AFFINE, TRACKED
from .layouts import NAMED_RESNET, NESTED_U_NET, NUMBERED_RESNET, Match, ResNetShape

Bias: TypeAlias = Literal["always", "as norm"]
"""Whether a convolution always has a bias, or as those before a norm."""

FEWEST_LEVELS = 5
"""Smallest number of levels of a U-Net: innermost, outermost and three more."""


@dataclass(frozen=True, slots=True)
class NormForm:
    """A norm that a code supports, and its traces in a checkpoint.

    name: in the code's options. parameters: tensors of each norm. bias: whether convolutions before
    it have one.
    """

    name: str
    parameters: frozenset[str]
    bias: bool


INSTANCE = NormForm("instance", frozenset(), bias=True)
TRACKED_INSTANCE = NormForm("instance", TRACKED, bias=True)
TRACKED_WITHOUT_BIAS = NormForm("instance", TRACKED, bias=False)
AFFINE_INSTANCE = NormForm("instance", AFFINE, bias=False)
BATCH = NormForm("batch", TRACKED | AFFINE, bias=False)
NO_NORM = NormForm("none", frozenset(), bias=False)
FAMILY_NORMS = (INSTANCE, BATCH, NO_NORM)


@dataclass(frozen=True, slots=True)
class GeneratorCode:
    """A generator class of a repository: the weights that it writes, and how it uses them.

    file: that defines it. reading: how it computes. norms: that it supports. layout: of its
    tensors. pads, block_pads, up_pads, sampled, blurred: as in ResNetShape; block_pads None:
    depends on the parameter padding_type. dropout: where it may occur. up_bias, last_bias: of the
    decoder and of the last convolution. statistics: used in tests by a norm with stored ones; None
    if the test run's options decide. reparametrisations: of weights, that it supports.
    padding_types: block padding by value of the parameter padding_type; empty without such a
    parameter.
    """

    file: str
    reading: Reading
    norms: tuple[NormForm, ...] = FAMILY_NORMS
    layout: str = NUMBERED_RESNET
    pads: bool = True
    block_pads: bool | None = True
    up_pads: bool = False
    sampled: bool = False
    blurred: bool | None = False
    dropout: Literal["none", "blocks", "outside"] = "none"
    up_bias: Bias = "as norm"
    last_bias: Bias = "always"
    statistics: NormStatistics | None = None
    reparametrisations: tuple[str, ...] = ()
    padding_types: tuple[tuple[str, PadMode], ...] = ()

    def contradictions(self, match: Match) -> Iterator[str]:
        """Yield properties of the tensors that this code would not have written, in words."""
        shape = match.shape
        for name in match.modules.folded:
            if name not in self.reparametrisations:
                yield f"{name}, which it does not write"
        if self.form(match) is None:
            yield f"{_norm_words(match)}, which it does not write"
        if isinstance(shape, ResNetShape):
            yield from self._resnet_contradictions(shape)
            return
        if shape.stride != (2, 2, 2):
            yield "kernels that are not cubic"
        if shape.levels < FEWEST_LEVELS:
            yield f"{shape.levels} levels instead of {FEWEST_LEVELS} or more"

    def form(self, match: Match) -> NormForm | None:
        """Return the norm of such tensors, or None."""
        fitting = (
            form
            for form in self.norms
            if form.parameters == match.norm_parameters and form.bias == match.shape.norm_bias
        )
        return next(fitting, None)

    def _resnet_contradictions(self, shape: ResNetShape) -> Iterator[str]:
        for ours, theirs, there, absent in (
            (self.pads, shape.pads, "outer pad layers", "no outer pad layers"),
            (self.block_pads, shape.block_pads, "pad layers in blocks", "no pad layers in blocks"),
            (self.sampled, shape.sampled, "a sampling decoder", "transposed convolutions"),
            (self.up_pads, shape.up_pads, "pad layers after sampling", "none after sampling"),
            (self.blurred, shape.blur_taps > 0, "anti-aliasing filters", "no such filters"),
            (
                self.dropout != "none" and shape.drops_in_blocks,
                shape.drops_in_blocks,
                "further layers in blocks",
                "",
            ),
            (
                self.dropout == "outside" and shape.drops_outside,
                shape.drops_outside,
                "further layers outside of blocks",
                "",
            ),
            (True, shape.has_norms, "", "no norms between its layers"),
        ):
            if ours is not None and ours != theirs:
                yield there if theirs else absent
        biases = (self.up_bias, shape.up_bias), (self.last_bias, shape.last_bias)
        if any(has != (rule == "always" or shape.norm_bias) for rule, has in biases):
            yield "biases in other places"
        if (shape.first_kernel, shape.last_kernel) != (7, 7):
            yield f"outer kernels of {shape.first_kernel} and {shape.last_kernel} instead of 7"
        if shape.downsamplings != 2:
            yield f"{shape.downsamplings} down-samplings instead of 2"

    def reading_of(self, match: Match, padding_type: str | None) -> Reading:
        """Return how this code computes; padding_type: in the training options, if known.

        Raises CheckpointError for a padding_type that contradicts the tensors.
        """
        form = self.form(match)
        norm = "none" if form is NO_NORM else "instance"
        reading = replace(self.reading, norm=norm)
        if not self.padding_types or not isinstance(match.shape, ResNetShape):
            return reading
        kinds = dict(self.padding_types)
        if not match.shape.block_pads:
            padding_type = padding_type or "zero"
        block_padding = kinds.get(padding_type or "reflect")
        if block_padding is None or (block_padding == "zero") == match.shape.block_pads:
            raise CheckpointError(
                f"The training options state padding_type: {padding_type}, but the blocks have "
                f"{'' if match.shape.block_pads else 'no '}pad layers; the options file is of "
                "another run."
            )
        return replace(reading, block_padding=block_padding)


@dataclass(frozen=True, slots=True)
class TrainingCode:
    """A training repository.

    name: for users. generators: its classes. copies: repositories with the same networks. note:
    remarks for users.
    """

    name: str
    repository: str
    generators: tuple[GeneratorCode, ...]
    copies: tuple[str, ...] = ()
    note: str = ""

    def generator(self, match: Match) -> GeneratorCode:
        """Return the class that writes such tensors; raises CheckpointError if none does."""
        reasons: list[str] = []
        for generator in self.generators:
            if generator.layout == match.layout:
                found = list(generator.contradictions(match))
                if not found:
                    return generator
                reasons += found[:1]
        why = reasons[0] if reasons else f"the layout {match.layout}, which it does not write"
        raise CheckpointError(f"Setting code={self.name} contradicts the file, which has {why}")


def fitting_codes(match: Match) -> tuple[str, ...]:
    """Return the names of the codes that write such tensors."""
    names: list[str] = []
    for code in CODES:
        try:
            code.generator(match)
        except CheckpointError:
            continue
        names.append(code.name)
    return tuple(names)


def code_named(name: str) -> TrainingCode:
    """Look up a training code by name; raises CheckpointError."""
    for code in CODES:
        if code.name.casefold() == name.casefold():
            return code
    known = ", ".join(code.name for code in CODES)
    raise CheckpointError(f"Setting code must be one of {known}, not {name!r}.")


def _norm_words(match: Match) -> str:
    parameters, bias = match.norm_parameters, match.shape.norm_bias
    held = f"norms with {', '.join(sorted(parameters))}" if parameters else "norms without tensors"
    return f"{held} and convolutions {'with' if bias else 'without'} bias before them"


_FAMILY: tuple[tuple[str, PadMode], ...] = (
    ("reflect", "reflect"),
    ("replicate", "replicate"),
    ("zero", "zero"),
)
_REFLECT = Reading(up_padding="zero")
_REPLICATE = replace(_REFLECT, padding="replicate", block_padding="replicate")
_ZERO = replace(_REFLECT, padding="zero", block_padding="zero")
_DEEPER_FIRST = replace(U_NET, concat="deeper-first")


def _family_resnet(file: str) -> GeneratorCode:
    """Return a ResNet whose outer layers always reflect; padding_type applies to blocks only."""
    return GeneratorCode(
        f"{file} (ResnetGenerator)",
        _REFLECT,
        block_pads=None,
        padding_types=_FAMILY,
        dropout="blocks",
    )


def _family_unet(
    file: str, reading: Reading = U_NET, norms: tuple[NormForm, ...] = FAMILY_NORMS
) -> GeneratorCode:
    return GeneratorCode(f"{file} (UnetGenerator)", reading, norms, NESTED_U_NET)


CODES = (
    TrainingCode(
        "junyanz",
        "junyanz/pytorch-CycleGAN-and-pix2pix",
        (_family_resnet("models/networks.py"), _family_unet("models/networks.py")),
        note="its networks with 3D layers instead of 2D ones, and nothing else changed",
    ),
    TrainingCode(
        "davidiommi",
        "davidiommi/3D-CycleGan-Pytorch-MedImaging",
        (
            GeneratorCode(
                "models/networks3D.py (ResnetGenerator)",
                _REPLICATE,
                (TRACKED_INSTANCE, BATCH),
                block_pads=None,
                statistics="patch",
                dropout="blocks",
                padding_types=(
                    ("reflect", "replicate"),
                    ("replicate", "replicate"),
                    ("zero", "zero"),
                ),
            ),
            replace(
                _family_unet("models/networks3D.py", norms=(TRACKED_WITHOUT_BIAS, BATCH)),
                statistics="patch",
            ),
        ),
        copies=(
            "AustinTapp/3D-CycleGAN",
            "pedrob37/MRA-GAN",
            "peterjhsu/CycleGAN-3D-ULF",
            "levente-1/GAMBAS",
            "junzhin/DGM-VLC",
        ),
        note="pads by replication although its option is reflect; its test.py never calls "
        "eval(), so each patch is normalised with its own statistics",
    ),
    TrainingCode(
        "DavidSolanas",
        "DavidSolanas/pytorch-CycleGAN3D",
        (_family_resnet("models/networks3d.py"), _family_unet("models/networks3d.py")),
        copies=("JlsBssmnn/pytorch-CycleGAN3D", "uci-cbcl/XOCT"),
    ),
    TrainingCode(
        "lucpaul",
        "lucpaul/EM_cycleGAN",
        (_family_resnet("models/networks_3d.py"),),
        note="its U-Nets do not pad and cannot be imported",
    ),
    TrainingCode(
        "mfazampour",
        "mfazampour/pytorch-CycleGAN-and-pix2pix",
        (
            GeneratorCode(
                "models/networks3d.py (ResnetGenerator3d)",
                _ZERO,
                (INSTANCE, BATCH),
                pads=False,
                block_pads=False,
                dropout="blocks",
            ),
            replace(
                _family_unet("models/networks3d.py", _DEEPER_FIRST, (INSTANCE, BATCH)),
                file="models/networks3d.py (UnetGenerator3d)",
            ),
        ),
    ),
    TrainingCode(
        "neoamos",
        "neoamos/3d-pix2pix-CycleGAN",
        (_family_unet("models/networks3d.py", _DEEPER_FIRST, (INSTANCE, BATCH)),),
        copies=("wallacees12", "jaychentank", "CristianaTiago"),
        note="U-Nets only",
    ),
    TrainingCode(
        "ganslate",
        "ganslate-team/ganslate",
        (
            GeneratorCode(
                "ganslate/nn/generators/resnet/resnet3d.py (Resnet3D)",
                _REPLICATE,
                (INSTANCE, BATCH),
                up_bias="always",
                last_bias="as norm",
            ),
            GeneratorCode(
                "ganslate/nn/generators/unet/unet3d.py (Unet3D)",
                U_NET,
                (INSTANCE, BATCH),
                layout=NESTED_U_NET,
            ),
        ),
    ),
    TrainingCode(
        "dhaberl",
        "dhaberl/3DCycleGAN",
        (
            GeneratorCode(
                "model.py (Generator)",
                replace(_REFLECT, down_padding="reflect"),
                (INSTANCE,),
                pads=False,
                block_pads=False,
                layout=NAMED_RESNET,
            ),
        ),
        note="every convolution reflects, also the strided ones",
    ),
    TrainingCode(
        "naga-karthik",
        "naga-karthik/3DCycleGAN",
        (
            GeneratorCode(
                "initial_codes/models3D.py (ResnetGenerator3D)",
                replace(_REPLICATE, up_padding="replicate", upsampling="nearest"),
                (INSTANCE,),
                sampled=True,
                up_pads=True,
                dropout="outside",
                reparametrisations=("spectral norm",),
            ),
        ),
        note="its ResNets, with spectral norm and dropout (models3D_SN.py, models3D_dropout_pl.py) "
        "too; its U-Nets cannot be imported",
    ),
    TrainingCode(
        "dan-hanson",
        "dan-hanson/3d_cycleGAN",
        (
            GeneratorCode(
                "utils.py (Generator3D)", _ZERO, (AFFINE_INSTANCE,), pads=False, block_pads=False
            ),
        ),
    ),
    TrainingCode(
        "lucianoAvinas",
        "lucianoAvinas/contrastive-unpaired-translation",
        (
            GeneratorCode(
                "models/networks3D.py (ResnetGenerator)",
                replace(_REPLICATE, blur_padding="replicate", upsampling="trilinear_zeros"),
                pads=False,
                block_pads=False,
                sampled=True,
                blurred=True,
                dropout="blocks",
            ),
            GeneratorCode(
                "models/networks3D.py (ResnetGenerator, no_antialias and no_antialias_up)",
                _REPLICATE,
                pads=False,
                block_pads=False,
                dropout="blocks",
            ),
        ),
        note="contrastive unpaired translation in 3-D; outer and block convolutions replicate, "
        "those that sample pad with zeros, and so does the filter that doubles",
    ),
)
