"""Transforms and inferer of a MONAI bundle as fields of a model card, or named where they are not.

Each is read from MONAI 1.6's source. What cannot be reproduced becomes a `NotReproduced`, never
nothing.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ...engine.importing.known_networks.monai_config import BundleConfig, Component, Unread
from ...engine.model import intensity_maps as maps
from ...engine.model.grid_window import GridWindow, WindowRule, WindowStep
from ...engine.model.intensity_maps import IntensityMap, IntensityStep, NetworkRange
from ...engine.model.model_card import GridRule, MapsOn, ScanCrop, is_axes_code
from ...engine.model.tiling import Shares, Tiling
from ...engine.network.layers import Triple
from ...engine.options import Blend, Inference
from ...engine.patch_grid import PatchPadding
from .monai_arguments import ComponentArguments, Refused, listed

_WITHOUT_EFFECT = frozenset(
    (
        *("LoadImage", "EnsureChannelFirst", "EnsureType", "ToTensor", "ToDevice", "CastToType"),
        *("Identity", "DeleteItems", "SelectItems", "SaveImage"),
    )
)
"""Transforms that change neither a number nor its place."""

_BEFORE, _AFTER = "preprocessing", "postprocessing"
_RANGES: dict[tuple[float, float], NetworkRange] = {(-1.0, 1.0): "-1..1", (0.0, 1.0): "0..1"}

Answer = Literal[
    "axes", "spacing", "grid", "intensity_in", "crop", "grid_window", "tiling", "patch", "omit"
]


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

    axes, spacing, grid_rule, grid, intensity_in, input_range, maps_on, crop, grid_window, patch,
    tiling, inference: as in ModelCard. padding: of small volumes, as there. left: parts that are
    not reproduced.
    """

    axes: str | None = None
    spacing: tuple[float, float, float] | None = None
    grid_rule: GridRule | None = None
    grid: Triple | None = None
    intensity_in: IntensityMap | None = None
    input_range: NetworkRange | None = None
    maps_on: MapsOn | None = None
    crop: ScanCrop | None = None
    grid_window: GridWindow | None = None
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
    change. omit: as of `bundle_data`. pad: last transform, if the inferer's windows may pad alike.
    window: steps on the model's grid so far. padding: of those that pad.
    """

    config: BundleConfig
    channels: int
    data: BundleData = field(default_factory=BundleData)
    chain: list[IntensityStep] = field(default_factory=list[IntensityStep])
    over: Literal["all", "nonzero"] = "all"
    keys: frozenset[str] | None = None
    omit: Collection[str] = ()
    pad: _Pad | None = None
    window: list[WindowStep] = field(default_factory=list[WindowStep])
    padding: PatchPadding | None = None

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
        self._pad_the_grid()
        if self.window:
            padding = 0.0 if self.padding is None else self.padding
            self.data.grid_window = GridWindow(tuple(self.window), padding)
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
            self._pad_the_grid()
        read, known = table.get(plain, (_unknown, answers))
        try:
            if table is _TRANSFORMS:
                self._check_keys(plain, found)
            arguments = ComponentArguments(found, _COMMON)
            read(self, arguments)
            arguments.check_taken()
        except Refused as refused:
            if "intensity_in" in known and self.data.maps_on is None:
                self.data.maps_on = self._grid()
            self.data.left.append(NotReproduced(found.name, str(refused), known))

    def _pad_the_grid(self) -> None:
        """Take a padding that the inferer's windows do not do as a step on the model's grid."""
        if self.pad is None:
            return
        pad, self.pad = self.pad, None
        try:
            self.add_step("at-least", pad.extents, pad.padding)
        except Refused as refused:
            self.data.left.append(NotReproduced(pad.name, str(refused), _WINDOW))

    def add_step(
        self, rule: WindowRule, voxels: Shares, padding: PatchPadding | None = None
    ) -> None:
        """Add a step on the model's grid. padding: of the step; None for one that never pads."""
        if not all(count.is_integer() for count in voxels):
            raise Refused("it has fractions of voxels")
        if padding is not None and self.padding not in (None, padding):
            raise Refused(f"it pads with {padding}, and a transform before it with {self.padding}")
        if padding is not None:
            self.padding = padding
        depth, height, width = (max(int(count), 0) for count in voxels)
        self.window.append(WindowStep(rule, (depth, height, width)))

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
        keys = frozenset(map(str, listed(found.arguments["keys"])))
        if plain == "ConcatItems":
            self.keys = frozenset((str(found.arguments.get("name")),))
        elif self.keys in (None, keys):
            self.keys = keys
        else:
            raise Refused(f"it changes {', '.join(sorted(keys))} alone")

    def _finish_chain(self) -> None:
        """State the intensity map unless one of its transforms was left."""
        data, chain = self.data, self.chain
        if data.intensity_in is None and chain:
            data.intensity_in = maps.Steps(
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
            assert not isinstance(first, maps.Steps)
            self.chain += _on_open_range(first, onto or "open")
            data.intensity_in = data.input_range = None
        on = self._grid()
        if data.maps_on not in (None, on):
            raise Refused(
                "other intensity transforms come before the resampling, cropping or padding, this "
                "one after"
            )
        data.maps_on = on
        self.chain += steps

    def _grid(self) -> MapsOn:
        """Return where the next intensity transform measures."""
        if self.window:
            return "window"
        is_resampled = self.data.spacing is not None or self.data.grid is not None
        return "grid" if is_resampled else "scan"

    def set_map(self, single: IntensityMap, onto: NetworkRange) -> None:
        """State a map that is one transform alone, in its plain form."""
        before = bool(self.chain) or self.data.intensity_in is not None
        self.add(*_on_open_range(single, onto))
        if not before:
            self.chain.clear()
            self.data.intensity_in, self.data.input_range = single, onto


_Read = Callable[[_Reader, ComponentArguments], None]


def _unknown(_reader: _Reader, _arguments: ComponentArguments) -> None:
    raise Refused("it is not known")


def _on_open_range(single: IntensityMap, onto: NetworkRange) -> tuple[IntensityStep, ...]:
    """Return the steps that give on an unbounded range what a map gives on a bounded one."""
    lowest = 0.0 if onto == "0..1" else -1.0
    match single:
        case maps.Window(low, high):
            return maps.ClipValues(low, high), _line(low, high, lowest, 1.0)
        case maps.Percentiles(low, high):
            return maps.ClipPercentiles(low, high), maps.MinMax(), _line(-1.0, 1.0, lowest, 1.0)
        case maps.MinMax():
            return maps.MinMax(), _line(-1.0, 1.0, lowest, 1.0)
        case maps.ZScore() | maps.Standard():
            return (single,)
        case _:
            raise ValueError(f"{single} does not come from a transform")


def _line(low: float, high: float, bottom: float, top: float) -> maps.Standard:
    """Return the map of low..high onto bottom..top."""
    sd = (high - low) / (top - bottom)
    return maps.Standard(low - bottom * sd, sd)


def _orientation(reader: _Reader, arguments: ComponentArguments) -> None:
    axes = arguments.take("axcodes", None)
    if arguments.flag("as_closest_canonical", default=False):
        axes = "RAS"
    arguments.drop("labels")
    if not isinstance(axes, str) or not is_axes_code(axes.upper()):
        raise Refused(f"its axcodes is {axes}")
    if reader.data.axes is not None:
        raise Refused("it is the second one")
    _check_first(reader)
    if reader.data.spacing is not None and len(set(reader.data.spacing)) > 1:
        reader.data.spacing = None
        raise Refused("Spacing comes before it, along the axes of each file")
    reader.data.axes = axes.upper()


def _check_first(reader: _Reader) -> None:
    """Refuse a transform of axes or grid after cropping or padding of the grid before it."""
    if reader.window:
        raise Refused("it follows cropping or padding, which is reproduced on the last grid alone")


def _spacing(reader: _Reader, arguments: ComponentArguments) -> None:
    arguments.only("mode", "bilinear", "linear", "trilinear", 1)
    arguments.only("padding_mode", "border", "nearest")
    arguments.only("diagonal", usual=False)
    arguments.only("scale_extent", usual=False)
    for name in ("min_pixdim", "max_pixdim"):
        arguments.only(name, usual=None)
    arguments.drop("align_corners", "recompute_affine")
    edges = arguments.numbers("pixdim")
    if min(edges) <= 0:
        raise Refused("its pixdim keeps the spacing of some axes")
    if reader.data.spacing is not None:
        raise Refused("it is the second one")
    _check_first(reader)
    if reader.data.axes is None and len(set(edges)) > 1:
        raise Refused("it comes before any Orientation, so its pixdim is along each file's axes")
    reader.data.spacing = edges
    reader.data.grid_rule = "monai" if reader.data.axes else "monai-scan"


def _resize(reader: _Reader, arguments: ComponentArguments) -> None:
    arguments.only("mode", "trilinear")
    arguments.only("size_mode", "all")
    arguments.only("align_corners", False, None)
    arguments.only("anti_aliasing", usual=False)
    arguments.drop("anti_aliasing_sigma")
    sizes = arguments.numbers("spatial_size")
    if reader.data.spacing is not None or reader.data.grid is not None:
        raise Refused("it is a second resampling")
    _check_first(reader)
    if min(sizes) < 2 or not all(size.is_integer() for size in sizes):
        raise Refused("its spatial_size keeps some extents")
    reader.data.grid = int(sizes[0]), int(sizes[1]), int(sizes[2])


def _scale_range(reader: _Reader, arguments: ComponentArguments) -> None:
    low, high = arguments.number("a_min"), arguments.number("a_max")
    bottom, top = arguments.optional("b_min"), arguments.optional("b_max")
    clips = arguments.flag("clip", default=False)
    if not low < high or (bottom is None) != (top is None):
        raise Refused("its limits are not a range")
    if clips and bottom is None:
        raise Refused("it clips to no limits")
    bottom, top = (0.0, 1.0) if bottom is None or top is None else (bottom, top)
    if not bottom < top:
        raise Refused("its limits are not a range")
    onto = _RANGES.get((bottom, top))
    if clips and onto:
        reader.set_map(maps.Window(low, high), onto)
    else:
        reader.add(*([maps.ClipValues(low, high)] if clips else []), _line(low, high, bottom, top))


def _check_channels(reader: _Reader, *, channel_wise: bool) -> None:
    if reader.channels > 1 and not channel_wise:
        raise Refused("it measures all channels together")


def _scale(reader: _Reader, arguments: ComponentArguments) -> None:
    channel_wise = arguments.flag("channel_wise", default=False)
    bottom, top = arguments.number("minv", 0.0), arguments.number("maxv", 1.0)
    arguments.only("factor", usual=None)
    _check_channels(reader, channel_wise=channel_wise)
    onto = _RANGES.get((bottom, top))
    if onto:
        reader.set_map(maps.MinMax(), onto)
    elif bottom < top:
        reader.add(maps.MinMax(), _line(-1.0, 1.0, bottom, top))
    else:
        raise Refused("its limits are not a range")


def _scale_percentiles(reader: _Reader, arguments: ComponentArguments) -> None:
    lower, upper = arguments.number("lower"), arguments.number("upper")
    bottom, top = arguments.optional("b_min"), arguments.optional("b_max")
    clips = arguments.flag("clip", default=False)
    channel_wise = arguments.flag("channel_wise", default=False)
    arguments.only("relative", usual=False)
    _check_channels(reader, channel_wise=channel_wise)
    if bottom is None or top is None or not bottom < top or not 0 <= lower < upper <= 100:
        raise Refused("its limits are not a range")
    onto = _RANGES.get((bottom, top))
    if clips and onto:
        reader.set_map(maps.Percentiles(lower, upper), onto)
    elif clips:
        line = _line(-1.0, 1.0, bottom, top)
        reader.add(maps.ClipPercentiles(lower, upper), maps.MinMax(), line)
    else:
        reader.add(maps.Percentiles(lower, upper), _line(-1.0, 1.0, bottom, top))


def _normalize(reader: _Reader, arguments: ComponentArguments) -> None:
    mean, sd = arguments.optional("subtrahend"), arguments.optional("divisor")
    nonzero = arguments.flag("nonzero", default=False)
    channel_wise = arguments.flag("channel_wise", default=False)
    if (mean is None) != (sd is None):
        raise Refused("it measures only one of mean and standard deviation")
    if mean is None or sd is None:
        _check_channels(reader, channel_wise=channel_wise)
    if nonzero and (reader.chain or reader.data.intensity_in is not None):
        raise Refused("its nonzero voxels are those of another intensity transform")
    reader.add(maps.ZScore() if mean is None or sd is None else maps.Standard(mean, sd))
    if nonzero:
        reader.over = "nonzero"


def _clip_percentiles(reader: _Reader, arguments: ComponentArguments) -> None:
    lower, upper = arguments.number("lower"), arguments.number("upper")
    channel_wise = arguments.flag("channel_wise", default=False)
    arguments.only("sharpness_factor", usual=None)
    arguments.only("return_clipping_values", usual=False)
    _check_channels(reader, channel_wise=channel_wise)
    if not 0 <= lower < upper <= 100:
        raise Refused("its limits are not a range")
    reader.add(maps.ClipPercentiles(lower, upper))


def _contrast(reader: _Reader, arguments: ComponentArguments) -> None:
    gamma = arguments.number("gamma")
    arguments.only("invert_image", usual=False)
    arguments.only("retain_stats", usual=False)
    if (reader.data.intensity_in, reader.data.input_range) != (maps.MinMax(), "0..1") or gamma <= 0:
        raise Refused("it does not follow ScaleIntensity onto 0..1")
    reader.add(maps.GammaCurve(gamma))


def _crop(reader: _Reader, arguments: ComponentArguments) -> None:
    arguments.drop("source_key", "start_coord_key", "end_coord_key")
    if reader.keys is not None and len(reader.keys) > 1:
        raise Refused("it measures one of several images")
    arguments.only("select_fn", usual=None)
    arguments.only("channel_indices", usual=None)
    arguments.only("k_divisible", 1)
    margin, padding = arguments.numbers("margin", 0.0), arguments.padding()
    smaller = arguments.flag("allow_smaller", default=False)
    if min(margin) < 0 or not all(edge.is_integer() for edge in margin):
        raise Refused(f"its margin is {margin}")
    data, pads = reader.data, max(margin) > 0 and not smaller
    is_changed = bool(reader.window or reader.chain or data.crop or data.intensity_in)
    is_on_scan = data.spacing is None and data.grid is None and not is_changed
    if is_on_scan and not pads and len(set(margin)) == 1:
        data.crop = ScanCrop("positive", int(margin[0]), 0.0)
    elif pads:
        reader.add_step("positive-padded", margin, padding)
    else:
        reader.add_step("positive", margin)


def _spatial_pad(reader: _Reader, arguments: ComponentArguments) -> None:
    extents = arguments.numbers("spatial_size")
    arguments.only("method", "symmetric")
    reader.pad = _Pad(arguments.name, extents, arguments.padding())


def _to_extents(reader: _Reader, arguments: ComponentArguments) -> None:
    arguments.only("method", "symmetric")
    reader.add_step("extents", arguments.numbers("spatial_size"), arguments.padding())


def _to_multiple(reader: _Reader, arguments: ComponentArguments) -> None:
    arguments.only("method", "symmetric")
    reader.add_step("multiple", arguments.numbers("k", 16), arguments.padding())


def _to_centre(reader: _Reader, arguments: ComponentArguments) -> None:
    reader.add_step("at-most", arguments.numbers("roi_size"))


def _border(reader: _Reader, arguments: ComponentArguments) -> None:
    before, after = arguments.sides("spatial_border")
    padding = arguments.padding()
    reader.add_step("before", before, padding)
    reader.add_step("after", after, padding)


def _concat(_reader: _Reader, arguments: ComponentArguments) -> None:
    arguments.drop("name")
    arguments.only("dim", 0)


def _invert(reader: _Reader, arguments: ComponentArguments) -> None:
    nearest = arguments.take("nearest_interp", default=True)
    arguments.drop("transform", "orig_keys", "orig_meta_keys", "meta_key_postfix", "to_tensor")
    arguments.only("post_func", usual=None)
    is_linear = all(one is False for one in listed(nearest))
    if not is_linear and (reader.data.spacing or reader.data.grid):
        raise Refused("it takes results back by nearest neighbours, as nearest_interp is not false")


_WINDOW: tuple[Answer, ...] = ("grid_window", "omit")

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
    "CropForeground": (_crop, ("crop", "grid_window")),
    "ResizeWithPadOrCrop": (_to_extents, _WINDOW),
    "SpatialPad": (_spatial_pad, _WINDOW),
    "DivisiblePad": (_to_multiple, _WINDOW),
    "CenterSpatialCrop": (_to_centre, _WINDOW),
    "BorderPad": (_border, _WINDOW),
    "ConcatItems": (_concat, ("omit",)),
}
_POST_TRANSFORMS: Mapping[str, tuple[_Read, tuple[Answer, ...]]] = {
    "Invert": (_invert, ()),
}


def _sliding(reader: _Reader, arguments: ComponentArguments) -> None:
    arguments.drop(*_OF_MEMORY)
    arguments.only("with_coord", usual=False)
    roi = arguments.numbers("roi_size")
    overlap = arguments.numbers("overlap", 0.25)
    sigma = arguments.numbers("sigma_scale", 0.125)
    mode = arguments.take("mode", "constant")
    padding = arguments.take("padding_mode", "constant")
    cval = arguments.number("cval", 0.0)
    if mode not in _BLENDS:
        raise Refused(f"its mode is {mode}")
    if padding != "constant" and padding not in _PADDINGS:
        raise Refused(f"its padding_mode is {padding}")
    if not all(0 <= share < 1 for share in overlap) or min(sigma) <= 0:
        raise Refused("its overlap or sigma_scale is out of range")
    if not all(edge.is_integer() for edge in roi):
        raise Refused(f"its roi_size is {roi}")
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


def _simple(reader: _Reader, _arguments: ComponentArguments) -> None:
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
