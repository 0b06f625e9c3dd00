"""Versions of cuDNN that are known to compute convolutions wrongly, without telling so.

Each plan is checked on the card before it is used, too; but a kernel that is wrong under conditions
that nobody states may well pass where it was tried.
"""

from dataclasses import dataclass

from .cudnn_copies import dotted

RIGHT_SINCE = (9, 16)
"""The first version of which none of this is known; what the extras install begins with it, and
leaves out the later ones of which something is.
"""

REMEDY = "install a newer one: pip install --upgrade 'cuda-cyclegan[cuda12]' (or cuda13)"


@dataclass(frozen=True, slots=True)
class KnownFault:
    """first, fixed: cuDNN's own numbers of the first version with it and of the first without.

    what: it does, as said of the version. source: where that is told.
    """

    first: int
    fixed: int
    what: str
    source: str


KNOWN_FAULTS = (
    KnownFault(
        90800,
        91500,
        "gives wrong results in 3D convolutions of fp16 and bf16",
        "PyTorch's issue 163539, where 9.8 and 9.10.2 did so with a tensor of 124x1282x722 voxels "
        "and 16 channels, and its pull requests 163581 and 166480, which keep 9.8 to 9.14 from it",
    ),
    KnownFault(
        91002,
        91600,
        "has a kernel for 3D convolutions of tf32 that is wrong",
        "PyTorch's pull request 167024, where cuDNN's team names 9.10.2 to 9.15 and no constraints",
    ),
    KnownFault(
        92301,
        92400,
        "has a kernel for convolutions whose results differ from run to run",
        "PyTorch's issue 188288 and its pull requests 188318, 189207 and 189483: seen with 2D "
        "networks on cards of capability 8.6, and gone with 9.24",
    ),
)


def known_fault(number: int) -> str | None:
    """What is known against a version, as cuDNN's own number such as 91002; None for nothing."""
    known = [fault for fault in KNOWN_FAULTS if fault.first <= number < fault.fixed]
    if not known:
        return None
    told = " and ".join(f"{fault.what} ({fault.source})" for fault in known)
    return f"version {dotted(number)} {told}"
