"""What is taken over the network, and in which encodings: what this program's reader can use."""

import pydicom.uid as uids

from ..dicom.kinds import SCANS

VERIFICATION = "1.2.840.10008.1.1"
COMMITMENT = "1.2.840.10008.1.20.1"
COMMITMENT_INSTANCE = "1.2.840.10008.1.20.1.1"

IMAGES: tuple[str, ...] = (*SCANS, uids.SecondaryCaptureImageStorage)
"""What scans and derived series consist of."""

PLAIN: tuple[str, ...] = (uids.ExplicitVRLittleEndian, uids.ImplicitVRLittleEndian)

SYNTAXES: tuple[str, ...] = (
    *PLAIN,
    uids.JPEGLSLossless,
    uids.JPEGLosslessSV1,
    uids.JPEGLossless,
    uids.JPEG2000Lossless,
    uids.HTJ2KLossless,
    uids.HTJ2KLosslessRPCL,
    uids.RLELossless,
    uids.JPEGLSNearLossless,
    uids.JPEGExtended12Bit,
    uids.JPEGBaseline8Bit,
    uids.JPEG2000,
    uids.HTJ2K,
    uids.ExplicitVRBigEndian,
)
"""Of those that a peer offers for the same objects, the first is taken: no lossy one unasked."""
