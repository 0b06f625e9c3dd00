"""Provenance of a reading without a reference: a named training code, or the user's own
responsibility.

The options file that a training run left beside its checkpoint is evidence only if the training
code is named: the same words mean different things in different codes.
"""

import re
from collections.abc import Iterator, Mapping

from ...errors import CheckpointError
from ...model.model_card import Established
from ..checkpoint_file import Options
from .evidence import (
    CONCATS,
    PLAIN_PADS,
    SAMPLINGS,
    Evidence,
    FieldValue,
    NormStatistics,
    Question,
    Reading,
    meaningless,
    parsed,
    setting,
    subject,
    with_choices,
    word,
)
from .generator_layers import AFFINE, TRACKED
from .layouts import Match, ResNetShape, UNetShape
from .training_codes import GeneratorCode, TrainingCode, code_named, fitting_codes

_GENERATOR_OPTIONS = ("netG", "which_model_netG")
_SHOWN_OPTIONS = (*_GENERATOR_OPTIONS, "norm", "padding_type", "direction", "ngf", "no_dropout")
_BLOCKS_OPTION = re.compile(r"resnet_(\d+)blocks")


def record_options(options: Options, match: Match, evidence: Evidence) -> None:
    """Record the options; raises CheckpointError if the tensors contradict them."""
    for name, stated, held in _contradictions(options, match):
        raise CheckpointError(
            f"{' and '.join(options.files)} next to the checkpoint states {name}: {stated}, but "
            f"the weights are of {held}; the file is from another run: remove it, or give its own "
            "checkpoint."
        )
    for name in _SHOWN_OPTIONS:
        if value := options.values.get(name):
            evidence.record(f"option {name}", value, f"written in {', '.join(options.files)}")


def _contradictions(options: Options, match: Match) -> Iterator[tuple[str, str, str]]:
    """Yield options that contradict the tensors: name, stated value, and the tensors' property."""
    values, shape = options.values, match.shape
    for name, number, what in (
        ("ngf", shape.width, "ngf"),
        ("input_nc", shape.in_channels, "input channels"),
        ("output_nc", shape.out_channels, "output channels"),
        ("n_downsampling", getattr(shape, "downsamplings", None), "down-samplings"),
    ):
        stated = values.get(name, "")
        if number is not None and stated.isdecimal() and int(stated) != number:
            yield name, stated, f"{number} {what}"
    yield from _of_the_generator(
        values.get(_GENERATOR_OPTIONS[0]) or values.get(_GENERATOR_OPTIONS[1]), match
    )
    norm = values.get("norm", "")
    if norm and not _norm_can_be(norm, match):
        yield "norm", norm, "another kind of norm"
    if isinstance(shape, ResNetShape):
        drops = {"True": False, "False": True}.get(values.get("no_dropout", ""))
        if drops is not None and drops != shape.drops:
            held = "a generator with dropout" if shape.drops else "one without dropout"
            yield "no_dropout", values["no_dropout"], held


def _of_the_generator(stated: str | None, match: Match) -> Iterator[tuple[str, str, str]]:
    shape = match.shape
    if not stated:
        return
    if isinstance(shape, UNetShape):
        if stated.startswith("resnet"):
            yield "netG", stated, "a U-Net"
        elif stated == "unet_32":
            raise CheckpointError(
                "The training options name unet_32, whose convolutions do not pad; such U-Nets "
                "are not supported."
            )
    elif stated.startswith("unet"):
        yield "netG", stated, "a ResNet"
    elif (blocks := _BLOCKS_OPTION.fullmatch(stated)) and int(blocks[1]) != shape.blocks:
        yield "netG", stated, f"{shape.blocks} blocks"


def _norm_can_be(stated: str, match: Match) -> bool:
    parameters, bias = match.norm_parameters, match.shape.norm_bias
    match stated:
        case "batch":
            return parameters == TRACKED | AFFINE
        case "instance":
            return parameters != TRACKED | AFFINE
        case "none":
            return not parameters and not bias
        case _:
            return True


_CODE_WHY = (
    "weights do not define padding, normalisation, activations and the last layer. Give the "
    "training code if it is one of these, unmodified; or give setting reference, a file written "
    "by the script of 'cuda-cyclegan model reference-script'; or use setting unproven, which "
    "marks the model and all its results"
)
_NO_CODE = Question(
    "reference",
    ("FILE.npz",),
    "weights do not define padding, normalisation, activations and the last layer, and no "
    "supported training code writes such weights. Give a file written by the script of "
    "'cuda-cyclegan model reference-script'; or use setting unproven, which marks the model and "
    "all its results",
)
_PARTS = {
    "padding": "padding",
    "block_padding": "padding in blocks",
    "down_padding": "padding of strided convolutions",
    "up_padding": "padding after sampling",
    "blur_padding": "padding of anti-aliasing",
    "norm": "norm",
    "activation": "activation",
    "block_activation": "activation in blocks",
    "up_activation": "activation of the decoder",
    "residual": "residual blocks end in",
    "end": "last activation",
    "epsilon": "epsilon of norms",
    "upsampling": "upsampling",
    "concat": "concat",
    "stride": "stride",
    "dilation": "dilation in blocks",
    "adds_input": "adds its input",
}
"""Labels of a reading's fields in tables."""


def resolve_reading(
    match: Match, evidence: Evidence, options: Options
) -> tuple[Reading, Established | None]:
    """Return the reading and the evidence of it; None if the user must state more.

    Raises CheckpointError if a choice does not apply or contradicts the file.
    """
    choices = evidence.choices
    check_meaning(match, evidence)
    if choices.code is not None:
        code = code_named(choices.code)
        return _by_code(code, match, evidence, options), Established("code", code.name)
    if choices.unproven:
        return _assumed(match, evidence), Established("unproven")
    reading = chosen_reading(match, evidence)
    fitting = fitting_codes(match)
    question = Question("code", fitting, _CODE_WHY) if fitting else _NO_CODE
    evidence.undecided.append(question)
    return reading, None


def open_fields(match: Match) -> dict[str, tuple[str, ...]]:
    """Return the fields that users may choose for such a network, with the usual answers."""
    shape = match.shape
    fields: dict[str, tuple[FieldValue, ...]] = {"padding": PLAIN_PADS, "end": (), "epsilon": ()}
    if match.is_tracked:
        fields["norm_statistics"] = ("patch", "stored")
    elif len(match.norms()) > 1:
        fields["norm"] = match.norms()
    if isinstance(shape, ResNetShape):
        fields |= {"block_padding": PLAIN_PADS, "activation": (), "residual": ()}
        if shape.sampled and not shape.blurs_up:
            fields["upsampling"] = SAMPLINGS
    else:
        fields["concat"] = CONCATS
    return {name: tuple(map(word, answers)) for name, answers in fields.items()}


def check_meaning(match: Match, evidence: Evidence) -> None:
    """Raise CheckpointError for choices that such a network does not leave open."""
    known = open_fields(match)
    for name in evidence.choices.stated():
        if name not in known:
            raise meaningless(name)


def chosen_reading(match: Match, evidence: Evidence) -> Reading:
    """Return the usual reading with the user's choices, and record these."""
    stated = evidence.choices.stated()
    for name, value in stated.items():
        evidence.record(subject(name), word(value), f"set with {setting(name)}")
    return reading_with(match, match.shape.usual, stated)


def reading_with(match: Match, reading: Reading, stated: Mapping[str, FieldValue]) -> Reading:
    """Return a reading with the user's choices."""
    shape = match.shape
    outer = isinstance(shape, ResNetShape) and shape.up_pads
    return with_choices(reading, stated, up_is_outer=outer)


def shown_fields(match: Match) -> Iterator[str]:
    """Yield the fields of a reading that apply to such a network."""
    shape = match.shape
    yield "padding"
    if isinstance(shape, ResNetShape):
        yield from ("block_padding", "down_padding")
        if shape.sampled:
            yield from ("up_padding", "upsampling")
        if shape.blur_taps:
            yield "blur_padding"
        yield from ("activation", "block_activation", "up_activation", "residual", "dilation")
    else:
        yield from ("activation", "up_activation", "concat")
    yield from ("norm", "epsilon", "stride", "end", "adds_input")


def field_label(field: str) -> str:
    """Return the label of a reading's field in tables."""
    return _PARTS[field]


def describe_field(reading: Reading, field: str) -> str:
    """Return the value of a reading's field, in words."""
    value = getattr(reading, field)
    if field == "norm" and value == "stored":
        return "with statistics of the training"
    if field == "norm" and value == "instance":
        return "instance norm of each patch"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return word(value)


def describe_differences(match: Match, reading: Reading, usual: Reading) -> str:
    """Return the differences between two readings, in words."""
    shown = set(shown_fields(match))
    differing = [name for name in reading.differences(usual) if name in shown]
    return (
        ", ".join(f"{field_label(name)} {describe_field(reading, name)}" for name in differing)
        or "as usual"
    )


def record_reading(match: Match, reading: Reading, evidence: Evidence, reason: str) -> None:
    """Record the fields of a reading in which networks of the family differ, with one reason."""
    usual = match.shape.usual
    always = {"padding", "block_padding", "norm", "upsampling", "concat", "end", "blur_padding"}
    for field in shown_fields(match):
        if field in always or getattr(reading, field) != getattr(usual, field):
            evidence.record(field_label(field), describe_field(reading, field), reason)


def _by_code(code: TrainingCode, match: Match, evidence: Evidence, options: Options) -> Reading:
    try:
        generator = code.generator(match)
    except CheckpointError as error:
        fitting = ", ".join(fitting_codes(match))
        advice = (
            f"such weights are written by {fitting}"
            if fitting
            else "no supported training code writes such weights"
        )
        raise CheckpointError(
            f"{error}; {advice}. Create a reference with your own training code; 'model "
            "reference-script' prints a script."
        ) from None
    record_options(options, match, evidence)
    reading = generator.reading_of(match, options.values.get("padding_type"))
    reading = _with_parameters(code, generator, match, reading, evidence)
    if "padding_type" not in options.values and evidence.choices.block_padding is None:
        reading = _with_block_padding(generator, match, reading, evidence)
    record_reading(match, reading, evidence, f"as computed by {generator.file} of {code.name}")
    if isinstance(match.shape, ResNetShape) and match.shape.drops:
        evidence.record("dropout", "off", f"{code.name} has it there; it only acts in training")
    if match.is_tracked:
        statistics = _statistics(code, generator, evidence, options)
        reading = reading_with(match, reading, {"norm_statistics": statistics})
    return reading


def _with_parameters(
    code: TrainingCode, generator: GeneratorCode, match: Match, reading: Reading, evidence: Evidence
) -> Reading:
    """Return the reading with choices that this code supports; rejects contradicting ones."""
    stated = evidence.choices.stated()
    stated.pop("norm_statistics", None)
    if generator.padding_types and match.shape.usual.block_padding == "reflect":
        block = stated.get("block_padding")
        if block in dict(generator.padding_types) and block != "zero":
            del stated["block_padding"]
            evidence.record("block padding", word(block), "set with setting block-padding")
            reading = reading_with(match, reading, {"block_padding": block})
    for name, value in stated.items():
        known = getattr(reading, name)
        if value != known:
            raise CheckpointError(
                f"{setting(name).capitalize()}={word(value)} contradicts setting code={code.name}, "
                f"whose {generator.file} has {word(known)}; omit one of the two."
            )
    return reading


def _with_block_padding(
    generator: GeneratorCode, match: Match, reading: Reading, evidence: Evidence
) -> Reading:
    """Return the reading with the run's padding_type, if the code has that parameter."""
    if match.shape.usual.block_padding == "zero":
        return reading
    paddings = dict.fromkeys(word(to) for _, to in generator.padding_types if to != "zero")
    if len(paddings) < 2:
        return reading
    block = evidence.ask("block_padding", paddings, _BLOCK_PADDING_WHY)
    return reading_with(match, reading, {"block_padding": parsed("block_padding", block)})


_BLOCK_PADDING_WHY = (
    "this code pads its blocks according to padding_type, which does not show in the weights; the "
    "default is reflect, and the wrong one spoils the border of every patch"
)


def _statistics(
    code: TrainingCode, generator: GeneratorCode, evidence: Evidence, options: Options
) -> FieldValue:
    stated = evidence.choices.norm_statistics
    if generator.statistics is not None:
        if stated not in (None, generator.statistics):
            raise CheckpointError(
                f"Setting norm-statistics={stated} contradicts setting code={code.name}, whose "
                f"test code normalises with those of the {generator.statistics}; omit one of the "
                "two."
            )
        evidence.record(
            "norm statistics", generator.statistics, f"the test code of {code.name} does so"
        )
        return generator.statistics
    if stated is None and (used := options.values.get("eval")):
        statistics: NormStatistics = "stored" if used == "True" else "patch"
        evidence.record(
            "norm statistics", statistics, f"eval: {used} in the options of the test run"
        )
        return statistics
    answer = evidence.ask("norm_statistics", ("patch", "stored"), _STATISTICS_WHY)
    return parsed("norm_statistics", answer)


_STATISTICS_WHY = (
    "the file stores statistics of the training, but much test code never calls eval() and "
    "normalises each patch with its own statistics; the wrong one shifts and scales the "
    "intensities"
)
_ASKED = {
    "padding": "only the position of pad layers shows, and 3D code with the option reflect often "
    "replicates; the wrong one spoils the border of every patch",
    "norm_statistics": _STATISTICS_WHY,
    "upsampling": "sampling layers have no weights; the wrong one smooths or shifts fine structure",
    "concat": "both halves of a concatenation have the same size; the wrong order mixes up fine "
    "and coarse features",
}
"""Choices that an unproven import requires, with reasons."""


def _assumed(match: Match, evidence: Evidence) -> Reading:
    """Return the usual reading; the fields that vary most are questions, the others assumptions."""
    shape, fields = match.shape, open_fields(match)
    stated = evidence.choices.stated()
    pads = isinstance(shape, ResNetShape) and (shape.pads or shape.block_pads)
    for name, why in _ASKED.items():
        if name in fields and (name != "padding" or pads):
            answers = fields[name][:2] if name == "padding" else fields[name]
            stated[name] = parsed(name, evidence.ask(name, answers, why))
    asked = {*_ASKED}
    for name, value in evidence.choices.stated().items():
        if name not in asked or (name == "padding" and not pads):
            evidence.record(subject(name), word(value), f"set with {setting(name)}")
    reading = reading_with(match, shape.usual, stated)
    if isinstance(shape, ResNetShape) and shape.drops:
        evidence.assume(
            "dropout", "off", "positions of further layers; dropout only acts in training"
        )
    settable = fields.keys() - stated.keys()
    for field in shown_fields(match):
        if field not in stated and not _is_followed(field, reading, stated):
            advice = f"; {setting(field)} changes it" if field in settable else ""
            evidence.assume(
                field_label(field),
                describe_field(reading, field),
                f"the weights do not show it{advice}",
            )
    return reading


def _is_followed(field: str, reading: Reading, stated: Mapping[str, FieldValue]) -> bool:
    """Return whether another field determines this one, so that it is not listed separately."""
    if field == "norm" and "norm_statistics" in stated:
        return True
    leader = {"block_activation": "activation", "up_activation": "activation"}.get(field)
    is_rare = field in ("dilation", "adds_input")
    return is_rare or (leader is not None and getattr(reading, field) == getattr(reading, leader))
