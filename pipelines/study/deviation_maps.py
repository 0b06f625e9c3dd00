"""Maps of deviations between results, with their means over the foreground: the TTA spread, and the
disagreement of the networks of an ensemble.
"""

from dataclasses import dataclass, replace

from ...engine.scaling import Scaling
from ...io.volume import Empty, Volume
from .figures import SpreadFigures
from .finish import Canvas, finish_map
from .inference import SpreadMoments, mean_in_foreground
from .maps import StudyMap, disagreement_mark, spread_marks
from .prepare import Prepared


@dataclass(frozen=True, slots=True)
class InferredSpread:
    """Outputs of the network for mirrored patches of a study. notes: for the user, on how.

    spread: of these outputs, in the canvases `mean` and `deviation`. scratch: memory of one output,
    reused for the result.
    """

    spread: SpreadMoments
    mean: Canvas
    deviation: Canvas
    scratch: Canvas
    notes: tuple[str, ...]


def finish_spread(
    prepared: Prepared, inferred: InferredSpread, empty: Empty
) -> tuple[tuple[StudyMap, ...], SpreadFigures]:
    """Return the maps of a spread, in the unit of the result, and its figures."""
    spread = inferred.spread
    spread.end()
    mean = finish_map(prepared, inferred.mean, prepared.fit.outward[0], empty)
    deviation, in_foreground = _deviation(prepared, inferred.deviation, empty)
    marks = spread_marks(spread.count)
    maps = tuple(map(StudyMap, marks, (mean, deviation)))
    return maps, SpreadFigures(spread.count, in_foreground)


def finish_disagreement(
    prepared: Prepared, output: Canvas, count: int, empty: Empty
) -> tuple[StudyMap, float]:
    """Return the disagreement of networks, in the unit of the result: its map, and its mean.

    output: with the disagreement of `count` networks in its last channel.
    """
    volume, in_foreground = _deviation(prepared, output, empty)
    return StudyMap(disagreement_mark(count), volume), in_foreground


def _deviation(prepared: Prepared, output: Canvas, empty: Empty) -> tuple[Volume, float]:
    """Return the last channel, a deviation of results, as a map in their unit, and its mean over
    the foreground of the first scan.
    """
    outward = prepared.fit.outward[0]
    fitted = replace(outward, scaling=Scaling(0.0, abs(outward.scaling.radius)))
    in_foreground = mean_in_foreground(output.target.values[-1], prepared.network_input)
    blank = replace(prepared, fills=(0.0,), window_fill=0.0)
    volume = finish_map(blank, output, fitted, empty)
    return replace(volume, keeps_unit=False), fitted.scaling.radius * in_foreground
