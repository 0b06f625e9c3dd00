"""Contents of a peer's request for an association."""

import pytest
from pynetdicom.sop_class import Verification

from cuda_cyclegan.io.dicom_network.negotiation import AssociationRequest, association_request

HEAD = 6
"""Bytes of a PDU before its body."""


@pytest.mark.parametrize(("announced", "expected"), [(16384, 16384), (0, 1 << 20)])
def test_a_peer_that_announces_no_limit_takes_long_pdus(announced: int, expected: int) -> None:
    sent = association_request("SENDER", "NODE", (Verification,), announced)
    request = AssociationRequest(sent[HEAD:])
    assert (request.calling, request.called) == ("SENDER", "NODE")
    assert request.longest == expected
