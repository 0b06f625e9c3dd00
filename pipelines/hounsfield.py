"""Hounsfield units of CT: intervals of tissues, and limits of what a CT holds."""

from dataclasses import dataclass
from math import inf

AIR_HU = -500.0
"""Upper limit of the air in and around a patient, which every CT in Hounsfield units has."""

LOWEST_HU = -1024.0
"""Lowest value of a CT with 12 bits, at which many are clipped: still air. Lower values fill what
lies outside the field of view.
"""


@dataclass(frozen=True, slots=True)
class Tissue:
    """Tissue by its values.

    name: its name in reports. low, high: in HU, the interval from `low` on and below `high`.
    """

    name: str
    low: float
    high: float


TISSUES = (
    Tissue("air", -inf, -900.0),
    Tissue("lung", -900.0, -500.0),
    Tissue("fat", -190.0, -29.0),
    Tissue("soft", -29.0, 150.0),
    Tissue("bone", 150.0, inf),
)
"""Intervals that do not overlap; mixtures of lung and fat, from -500 to -190, are in none.

air, lung: normally aerated lung (Gattinoni et al., Am J Respir Crit Care Med 2001;164:1701), and
what is lower. fat, soft: adipose tissue and skeletal muscle (Aubrey et al., Acta Physiol
2014;210:489). bone: what is denser than these.
"""

BONE_HU = (150, 300)
"""Lower limits of bone: what is denser than muscle, and the mean of pelvic bone in CT
(doi:10.1186/s13014-015-0549-7), above which mainly compact bone lies.
"""
