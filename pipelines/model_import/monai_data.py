"""Transforms and inferer of a MONAI bundle as fields of a model card, or named where they are not.

Each is read from MONAI 1.6's source. What cannot be reproduced becomes a `NotReproduced`, never
nothing.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from ...engine.importing.known_networks.monai_config import BundleConfig, Component, Unread
from ...engine.model.intensity_maps import (
    ClipPercentiles,
    ClipValues,
    GammaCurve,
    IntensityMap,
    IntensityStep,
    MinMax,
    NetworkRange,
    Percentiles,
    Standard,
    Steps,
    Window,
    ZScore,
)
from ...engine.model.model_card import GridRule, ScanCrop, is_axes_code
from ...engine.model.tiling import Shares, Tiling
from ...engine.network.layers import Triple
from ...engine.options import Blend, Inference
from ...engine.patch_grid import PatchPadding

_WITHOUT_EFFECT = frozenset(
    (
        *("LoadImage", "EnsureChannelFirst", "EnsureType", "ToTensor", "ToDevice", "CastToType"),
        *("Identity", "DeleteItems", "SelectItems", "SaveImage"),
    )
)
"""Transforms that change neither a number nor its place."""

_BEFORE, _AFTER = "preprocessing", "postprocessing"
_RANGES: dict[tuple[float, float], NetworkRange] = {(-1.0, 1.0): "-1..1", (0.0, 1.0): "0..1"}

Answer = Literal["axes", "spacing", "grid", "intensity_in", "crop", "tiling", "patch", "omit"]


@dataclass(frozen=True, slots=True)
class NotReproduced:
    """Part of a bundle that is not reproduced.

    name: of its class. why: clause for the user. answers: settings that state its effect.
    """

    name: str
    why: str
    answers: tuple[Answer, ...] = ()


@dataclass(slots=True)
class BundleData:
    """Statements of a bundle about scans and patches; None is not stated.

    axes, spacing, grid_rule, grid, intensity_in, input_range, maps_on, crop, patch, tiling,
    inference: as in ModelCard. padding: of small volumes, as there. left: parts that are not
    reproduced.
    """

    axes: str | None = None
    spacing: tuple[float, float, float] | None = None
    grid_rule: GridRule | None = None
    grid: Triple | None = None
    intensity_in: IntensityMap | None = None
    input_range: NetworkRange | None = None
    maps_on: Literal["scan", "grid"] | None = None
    crop: ScanCrop | None = None
    patch: Triple | None = None
    tiling: Tiling | None = None
    padding: PatchPadding | None = None
    inference: Inference | None = None
    left: list[NotReproduced] = field(default_factory=list[NotReproduced])


@dataclass(frozen=True, slots=True)
class _Pad:
    """Symmetric padding of small volumes, as the last transform.

    name: of its class. extents: at least those, along each axis; none where not positive.
    """

    name: str
    extents: Shares
    padding: PatchPadding


class _Refused(Exception):  # noqa: N818
    """A transform with arguments that are not reproduced; its text says which."""


def _listed(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else [value]


class _Arguments:
    """Arguments of one component; each is taken once, and what is left over is not reproduced."""

    def __init__(self, component: Component, ignored: frozenset[str]) -> None:
        self.name = component.name
        self._held = {key: one for key, one in component.arguments.items() if key not in ignored}

    def take(self, name: str, default: object) -> object:
        value = self._held.pop(name, default)
        if isinstance(value, Unread):
            raise _Refused(f"its {name} is the expression {value.text[:60]}")
        return value

    def drop(self, *names: str) -> None:
        """Ignore arguments that change nothing, whatever they are."""
        for name in names:
            self._held.pop(name, None)

    def only(self, name: str, usual: object, *more: object) -> None:
        """Refuse an argument with a value that is none of these."""
        value = self.take(name, usual)
        for one in _listed(value):
            if one not in (usual, *more) or isinstance(one, bool) != isinstance(usual, bool):
                raise _Refused(f"its {name} is {one}")

    def number(self, name: str, default: float | None = None) -> float:
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _Refused(f"its {name} is {value}")
        return float(value)

    def optional(self, name: str) -> float | None:
        return None if self._held.get(name) is None else self.number(name)

    def flag(self, name: str, default: bool) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise _Refused(f"its {name} is {value}")
        return value

    def numbers(self, name: str, default: object = None) -> Shares:
        """Return three numbers; one stands for all axes."""
        value = self.take(name, default)
        listed = _listed(value)
        values = listed * 3 if len(listed) == 1 else listed
        numbers = [
            float(one)
            for one in values
            if isinstance(one, int | float) and not isinstance(one, bool)
        ]
        if len(values) != 3 or len(numbers) != 3:
            raise _Refused(f"its {name} is {value}")
        first, second, third = numbers
        return first, second, third

    def check_taken(self) -> None:
        for name in self._held:
            raise _Refused(f"its {name} is not known")


_COMMON = frozenset(("keys", "allow_missing_keys", "dtype", "lazy", "device", "meta_keys"))


def bundle_data(config: BundleConfig, channels: int, omit: Collection[str] = ()) -> BundleData:
    """Return what the transforms and the inferer of a bundle state about its data.

    channels: number of the network's inputs. omit: names of parts that may be left.
    """
    return _Reader(config, channels, omit=omit).read()


@dataclass(slots=True)
class _Reader:
    """Reading of one bundle, in the order of its transforms.

    chain: intensity steps so far. over: voxels that they measure. keys: images that transforms
    change. omit: as of `bundle_data`. pad: padding that the inferer's windows have yet to match.
    """

    config: BundleConfig
    channels: int
    data: BundleData = field(default_factory=BundleData)
    chain: list[IntensityStep] = field(default_factory=list[IntensityStep])
    over: Literal["all", "nonzero"] = "all"
    keys: frozenset[str] | None = None
    omit: Collection[str] = ()
    pad: _Pad | None = None

    def read(self) -> BundleData:
        for found in self.config.composed(_BEFORE):
            self._take(found, _TRANSFORMS, ("omit",))
        self._finish_chain()
        for found in self.config.composed(_AFTER):
            self._take(found, _POST_TRANSFORMS, ("omit",))
        inferer = self.config.component("inferer")
        if inferer is None:
            self.data.left.append(
                NotReproduced("inferer", "the configuration has none", ("tiling", "patch"))
            )
        else:
            self._take(inferer, _INFERERS, ("tiling",))
        self._leave_pad("the windows of the inferer have other extents, or there are none")
        return self.data

    def _take(
        self,
        found: Component | Unread,
        table: "Mapping[str, tuple[_Read, tuple[Answer, ...]]]",
        answers: tuple[Answer, ...],
    ) -> None:
        if isinstance(found, Unread):
            self.data.left.append(NotReproduced(found.text[:60], "it is an expression", answers))
            return
        names = found.name, *(found.name.removesuffix(end) for end in ("d", "D", "Dict"))
        if any(name in _WITHOUT_EFFECT for name in names):
            return
        plain = next((name for name in names if name in table), found.name)
        if table is _TRANSFORMS and plain != "ConcatItems":
            self._leave_pad(f"{found.name} follows it")
        read, known = table.get(plain, (_unknown, answers))
        try:
            if table is _TRANSFORMS:
                self._check_keys(plain, found)
            arguments = _Arguments(found, _COMMON)
            read(self, arguments)
            arguments.check_taken()
        except _Refused as refused:
            if "intensity_in" in known and self.data.maps_on is None:
                self.data.maps_on = self._grid()
            self.data.left.append(NotReproduced(found.name, str(refused), known))

    def _leave_pad(self, why: str) -> None:
        """Name a padding that is not reproduced, if there is one."""
        if self.pad is not None:
            self.data.left.append(NotReproduced(self.pad.name, why, ("omit",)))
            self.pad = None

    def pad_windows(self, roi: Triple) -> None:
        """Let the windows of the inferer pad small volumes, if that is what the padding did.

        Both pad half of what lacks, rounded down, in front. Axes that only the windows pad must be
        padded alike.
        """
        pad, data = self.pad, self.data
        if pad is None:
            return
        is_alike = pad.padding == data.padding
        edges = zip(pad.extents, roi, strict=True)
        if all(extent == edge or (extent <= 0 and is_alike) for extent, edge in edges):
            data.padding, self.pad = pad.padding, None

    def _check_keys(self, plain: str, found: Component) -> None:
        """Refuse a transform of other images than those before it change."""
        if "keys" not in found.arguments:
            return
        keys = frozenset(map(str, _listed(found.arguments["keys"])))
        if plain == "ConcatItems":
            self.keys = frozenset((str(found.arguments.get("name")),))
        elif self.keys in (None, keys):
            self.keys = keys
        else:
            raise _Refused(f"it changes {', '.join(sorted(keys))} alone")

    def _finish_chain(self) -> None:
        """State the intensity map unless one of its transforms was left."""
        data, chain = self.data, self.chain
        if data.intensity_in is None and chain:
            data.intensity_in = Steps(
                tuple(chain), self.over, "zero" if self.over == "nonzero" else "mapped"
            )
            data.input_range = "open"
        asked = [left for left in data.left if left.name not in self.omit]
        if any("intensity_in" in left.answers for left in asked):
            data.intensity_in = data.input_range = None

    def add(self, *steps: IntensityStep) -> None:
        """Add steps that are exact on an unbounded range."""
        data = self.data
        if data.intensity_in is not None:
            first, onto = data.intensity_in, data.input_range
            assert not isinstance(first, Steps)
            self.chain += _on_open_range(first, onto or "open")
            data.intensity_in = data.input_range = None
        on = self._grid()
        if data.maps_on not in (None, on):
            raise _Refused("other intensity transforms come before the resampling, this one after")
        data.maps_on = on
        self.chain += steps

    def _grid(self) -> Literal["scan", "grid"]:
        """Return where the next intensity transform measures."""
        is_resampled = self.data.spacing is not None or self.data.grid is not None
        return "grid" if is_resampled else "scan"

    def set_map(self, single: IntensityMap, onto: NetworkRange) -> None:
        """State a map that is one transform alone, in its plain form."""
        before = bool(self.chain) or self.data.intensity_in is not None
        self.add(*_on_open_range(single, onto))
        if not before:
            self.chain.clear()
            self.data.intensity_in, self.data.input_range = single, onto


_Read = Callable[[_Reader, _Arguments], None]


def _unknown(_reader: _Reader, _arguments: _Arguments) -> None:
    raise _Refused("it is not known")


def _on_open_range(single: IntensityMap, onto: NetworkRange) -> tuple[IntensityStep, ...]:
    """Return the steps that give on an unbounded range what a map gives on a bounded one."""
    lowest = 0.0 if onto == "0..1" else -1.0
    match single:
        case Window(low, high):
            return ClipValues(low, high), _line(low, high, lowest, 1.0)
        case Percentiles(low, high):
            return ClipPercentiles(low, high), MinMax(), _line(-1.0, 1.0, lowest, 1.0)
        case MinMax():
            return MinMax(), _line(-1.0, 1.0, lowest, 1.0)
        case ZScore() | Standard():
            return (single,)
        case _:
            raise ValueError(f"{single} does not come from a transform")


def _line(low: float, high: float, bottom: float, top: float) -> Standard:
    """Return the map of low..high onto bottom..top."""
    sd = (high - low) / (top - bottom)
    return Standard(low - bottom * sd, sd)


def _orientation(reader: _Reader, arguments: _Arguments) -> None:
    axes = arguments.take("axcodes", None)
    if arguments.flag("as_closest_canonical", default=False):
        axes = "RAS"
    arguments.drop("labels")
    if not isinstance(axes, str) or not is_axes_code(axes.upper()):
        raise _Refused(f"its axcodes is {axes}")
    if reader.data.axes is not None:
        raise _Refused("it is the second one")
    if reader.data.spacing is not None and len(set(reader.data.spacing)) > 1:
        reader.data.spacing = None
        raise _Refused("Spacing comes before it, along the axes of each file")
    reader.data.axes = axes.upper()


def _spacing(reader: _Reader, arguments: _Arguments) -> None:
    arguments.only("mode", "bilinear", "linear", "trilinear", 1)
    arguments.only("padding_mode", "border", "nearest")
    arguments.only("diagonal", usual=False)
    arguments.only("scale_extent", usual=False)
    for name in ("min_pixdim", "max_pixdim"):
        arguments.only(name, usual=None)
    arguments.drop("align_corners", "recompute_affine")
    edges = arguments.numbers("pixdim")
    if min(edges) <= 0:
        raise _Refused("its pixdim keeps the spacing of some axes")
    if reader.data.spacing is not None:
        raise _Refused("it is the second one")
    if reader.data.axes is None and len(set(edges)) > 1:
        raise _Refused("it comes before any Orientation, so its pixdim is along each file's axes")
    reader.data.spacing = edges
    reader.data.grid_rule = "monai" if reader.data.axes else "monai-scan"


def _resize(reader: _Reader, arguments: _Arguments) -> None:
    arguments.only("mode", "trilinear")
    arguments.only("size_mode", "all")
    arguments.only("align_corners", False, None)
    arguments.only("anti_aliasing", usual=False)
    arguments.drop("anti_aliasing_sigma")
    sizes = arguments.numbers("spatial_size")
    if reader.data.spacing is not None or reader.data.grid is not None:
        raise _Refused("it is a second resampling")
    if min(sizes) < 2 or not all(size.is_integer() for size in sizes):
        raise _Refused("its spatial_size keeps some extents")
    reader.data.grid = int(sizes[0]), int(sizes[1]), int(sizes[2])


def _scale_range(reader: _Reader, arguments: _Arguments) -> None:
    low, high = arguments.number("a_min"), arguments.number("a_max")
    bottom, top = arguments.optional("b_min"), arguments.optional("b_max")
    clips = arguments.flag("clip", default=False)
    if not low < high or (bottom is None) != (top is None):
        raise _Refused("its limits are not a range")
    if clips and bottom is None:
        raise _Refused("it clips to no limits")
    bottom, top = (0.0, 1.0) if bottom is None or top is None else (bottom, top)
    if not bottom < top:
        raise _Refused("its limits are not a range")
    onto = _RANGES.get((bottom, top))
    if clips and onto:
        reader.set_map(Window(low, high), onto)
    else:
        reader.add(*([ClipValues(low, high)] if clips else []), _line(low, high, bottom, top))


def _check_channels(reader: _Reader, *, channel_wise: bool) -> None:
    if reader.channels > 1 and not channel_wise:
        raise _Refused("it measures all channels together")


def _scale(reader: _Reader, arguments: _Arguments) -> None:
    channel_wise = arguments.flag("channel_wise", default=False)
    bottom, top = arguments.number("minv", 0.0), arguments.number("maxv", 1.0)
    arguments.only("factor", usual=None)
    _check_channels(reader, channel_wise=channel_wise)
    onto = _RANGES.get((bottom, top))
    if onto:
        reader.set_map(MinMax(), onto)
    elif bottom < top:
        reader.add(MinMax(), _line(-1.0, 1.0, bottom, top))
    else:
        raise _Refused("its limits are not a range")


def _scale_percentiles(reader: _Reader, arguments: _Arguments) -> None:
    lower, upper = arguments.number("lower"), arguments.number("upper")
    bottom, top = arguments.optional("b_min"), arguments.optional("b_max")
    clips = arguments.flag("clip", default=False)
    channel_wise = arguments.flag("channel_wise", default=False)
    arguments.only("relative", usual=False)
    _check_channels(reader, channel_wise=channel_wise)
    if bottom is None or top is None or not bottom < top or not 0 <= lower < upper <= 100:
        raise _Refused("its limits are not a range")
    onto = _RANGES.get((bottom, top))
    if clips and onto:
        reader.set_map(Percentiles(lower, upper), onto)
    elif clips:
        line = _line(-1.0, 1.0, bottom, top)
        reader.add(ClipPercentiles(lower, upper), MinMax(), line)
    else:
        reader.add(Percentiles(lower, upper), _line(-1.0, 1.0, bottom, top))


def _normalize(reader: _Reader, arguments: _Arguments) -> None:
    mean, sd = arguments.optional("subtrahend"), arguments.optional("divisor")
    nonzero = arguments.flag("nonzero", default=False)
    channel_wise = arguments.flag("channel_wise", default=False)
    if (mean is None) != (sd is None):
        raise _Refused("it measures only one of mean and standard deviation")
    if mean is None or sd is None:
        _check_channels(reader, channel_wise=channel_wise)
    if nonzero and (reader.chain or reader.data.intensity_in is not None):
        raise _Refused("its nonzero voxels are those of another intensity transform")
    reader.add(ZScore() if mean is None or sd is None else Standard(mean, sd))
    if nonzero:
        reader.over = "nonzero"


def _clip_percentiles(reader: _Reader, arguments: _Arguments) -> None:
    lower, upper = arguments.number("lower"), arguments.number("upper")
    channel_wise = arguments.flag("channel_wise", default=False)
    arguments.only("sharpness_factor", usual=None)
    arguments.only("return_clipping_values", usual=False)
    _check_channels(reader, channel_wise=channel_wise)
    if not 0 <= lower < upper <= 100:
        raise _Refused("its limits are not a range")
    reader.add(ClipPercentiles(lower, upper))


def _contrast(reader: _Reader, arguments: _Arguments) -> None:
    gamma = arguments.number("gamma")
    arguments.only("invert_image", usual=False)
    arguments.only("retain_stats", usual=False)
    if (reader.data.intensity_in, reader.data.input_range) != (MinMax(), "0..1") or gamma <= 0:
        raise _Refused("it does not follow ScaleIntensity onto 0..1")
    reader.add(GammaCurve(gamma))


def _crop(reader: _Reader, arguments: _Arguments) -> None:
    arguments.drop("source_key", "start_coord_key", "end_coord_key")
    arguments.only("select_fn", usual=None)
    arguments.only("channel_indices", usual=None)
    arguments.only("k_divisible", 1)
    arguments.only("mode", "constant")
    margin = arguments.number("margin", 0.0)
    smaller = arguments.flag("allow_smaller", default=False)
    if margin < 0 or not margin.is_integer() or (margin and not smaller):
        raise _Refused(f"it pads where its margin of {margin:g} goes beyond the scan")
    if reader.data.spacing is not None or reader.data.grid is not None:
        raise _Refused("it follows a resampling")
    if reader.chain or reader.data.intensity_in is not None:
        raise _Refused("it follows an intensity transform")
    reader.data.crop = ScanCrop("positive", int(margin), 0.0)


def _spatial_pad(reader: _Reader, arguments: _Arguments) -> None:
    extents = arguments.numbers("spatial_size")
    arguments.only("method", "symmetric")
    mode = arguments.take("mode", "constant")
    value = arguments.number("value", 0.0)
    if mode == "constant":
        reader.pad = _Pad(arguments.name, extents, value)
    elif mode in ("edge", "replicate"):
        reader.pad = _Pad(arguments.name, extents, "edge")
    else:
        raise _Refused(f"its mode is {mode}")


def _to_extents(_reader: _Reader, _arguments: _Arguments) -> None:
    raise _Refused("it crops or pads each scan to extents of its own")


def _concat(_reader: _Reader, arguments: _Arguments) -> None:
    arguments.drop("name")
    arguments.only("dim", 0)


def _invert(reader: _Reader, arguments: _Arguments) -> None:
    nearest = arguments.take("nearest_interp", default=True)
    arguments.drop("transform", "orig_keys", "orig_meta_keys", "meta_key_postfix", "to_tensor")
    arguments.only("post_func", usual=None)
    is_linear = all(one is False for one in _listed(nearest))
    if not is_linear and (reader.data.spacing or reader.data.grid):
        raise _Refused(
            "it takes results back by nearest neighbours, as nearest_interp is not false"
        )


_TRANSFORMS: Mapping[str, tuple[_Read, tuple[Answer, ...]]] = {
    "Orientation": (_orientation, ("axes",)),
    "Spacing": (_spacing, ("spacing",)),
    "Resize": (_resize, ("grid",)),
    "ScaleIntensityRange": (_scale_range, ("intensity_in",)),
    "ScaleIntensity": (_scale, ("intensity_in",)),
    "ScaleIntensityRangePercentiles": (_scale_percentiles, ("intensity_in",)),
    "NormalizeIntensity": (_normalize, ("intensity_in",)),
    "ClipIntensityPercentiles": (_clip_percentiles, ("intensity_in",)),
    "AdjustContrast": (_contrast, ("intensity_in",)),
    "ThresholdIntensity": (_unknown, ("intensity_in",)),
    "ShiftIntensity": (_unknown, ("intensity_in",)),
    "HistogramNormalize": (_unknown, ("intensity_in",)),
    "CropForeground": (_crop, ("crop",)),
    "ResizeWithPadOrCrop": (_to_extents, ("omit",)),
    "SpatialPad": (_spatial_pad, ("omit",)),
    "DivisiblePad": (_to_extents, ("omit",)),
    "CenterSpatialCrop": (_to_extents, ("omit",)),
    "ConcatItems": (_concat, ("omit",)),
}
_POST_TRANSFORMS: Mapping[str, tuple[_Read, tuple[Answer, ...]]] = {
    "Invert": (_invert, ()),
}


def _sliding(reader: _Reader, arguments: _Arguments) -> None:
    arguments.drop(*_OF_MEMORY)
    arguments.only("with_coord", usual=False)
    roi = arguments.numbers("roi_size")
    overlap = arguments.numbers("overlap", 0.25)
    sigma = arguments.numbers("sigma_scale", 0.125)
    mode = arguments.take("mode", "constant")
    padding = arguments.take("padding_mode", "constant")
    cval = arguments.number("cval", 0.0)
    if mode not in _BLENDS:
        raise _Refused(f"its mode is {mode}")
    if padding != "constant" and padding not in _PADDINGS:
        raise _Refused(f"its padding_mode is {padding}")
    if not all(0 <= share < 1 for share in overlap) or min(sigma) <= 0:
        raise _Refused("its overlap or sigma_scale is out of range")
    if not all(edge.is_integer() for edge in roi):
        raise _Refused(f"its roi_size is {roi}")
    data = reader.data
    if max(roi) <= 0:
        data.inference = "volume"
        return
    data.tiling = Tiling("monai", overlap, _BLENDS[mode], sigma)
    data.padding = cval if padding == "constant" else _PADDINGS[padding]
    if min(roi) <= 0:
        data.left.append(
            NotReproduced(
                "roi_size",
                f"its patches of {', '.join(f'{edge:g}' for edge in roi)} take the extent of each "
                "scan along some axes",
                ("patch",),
            )
        )
        return
    data.inference = "patches"
    data.patch = int(roi[0]), int(roi[1]), int(roi[2])
    reader.pad_windows(data.patch)


def _simple(reader: _Reader, _arguments: _Arguments) -> None:
    reader.data.inference = "volume"


_OF_MEMORY = (
    *("sw_batch_size", "sw_device", "progress", "cache_roi_weight_map", "cpu_thresh"),
    *("buffer_steps", "buffer_dim"),
)
"""Arguments of an inferer that decide about memory and time alone."""

_BLENDS: dict[object, Blend] = {"constant": "constant", "gaussian": "gaussian"}
_PADDINGS: dict[object, PatchPadding] = {"replicate": "edge", "reflect": "reflect"}

_INFERERS: Mapping[str, tuple[_Read, tuple[Answer, ...]]] = {
    "SlidingWindowInferer": (_sliding, ("tiling",)),
    "SlidingWindowInfererAdapt": (_sliding, ("tiling",)),
    "SimpleInferer": (_simple, ("tiling",)),
}
