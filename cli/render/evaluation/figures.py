"""How figures of an evaluation are written."""

from ....pipelines.evaluation.protocols import Protocol
from ....pipelines.evaluation.report import Metric
from ....pipelines.study.voxels.statistics import Range

_DIGITS = {"psnr": 2, "ms_ssim": 4, "ssim": 4, "r": 4}


def figure(metric: Metric, value: float | None) -> str:
    """A value with the digits that its metric is told with; nothing where it is not defined."""
    if value is None:
        return ""
    digits = _DIGITS.get(metric.name)
    return f"{value:#.4g}".rstrip(".") if digits is None else f"{value:.{digits}f}"


def data_range(ends: Range | None) -> str:
    """Both ends of a range."""
    return f"{ends.low:.6g} to {ends.high:.6g}" if ends else ""


def unit(protocol: Protocol) -> str:
    """What the mean absolute error is told in."""
    return "HU" if protocol.is_of_ct else "the truth's unit"


def rules(protocol: Protocol) -> str:
    """The protocol in a sentence."""
    if protocol.data_range is None:
        return f"Protocol {protocol.name}: MAE in {unit(protocol)}, data range of each truth's own"
    ends = data_range(protocol.data_range)
    return f"Protocol {protocol.name}: MAE in {unit(protocol)}, data range {ends}"
