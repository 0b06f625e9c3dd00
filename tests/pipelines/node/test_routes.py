"""Senders that may send, by title and address."""

import pytest

from cuda_cyclegan.io.dicom_network.requesting import Peer
from cuda_cyclegan.pipelines.errors import ConfigError
from cuda_cyclegan.pipelines.node.routes import Caller, parse_peer


@pytest.mark.parametrize(
    ("asked", "title", "address", "admitted"),
    [
        ("A@10.0.0.5", "A", "10.0.0.5", True),
        ("A@10.0.0.5", "A", "10.0.0.6", False),
        ("A@10.0.0.5", "B", "10.0.0.5", False),
        ("A@10.0.1.0/24", "A", "10.0.1.77", True),
        ("A@10.0.1.0/24", "A", "10.0.2.77", False),
        ("A@10.0.0.5", "A", "::ffff:10.0.0.5", True),
        ("A@fd00::/8", "A", "fd00::1", True),
        ("A@fd00::/8", "A", "10.0.0.5", False),
    ],
)
def test_a_caller_is_a_title_at_an_address(
    asked: str, title: str, address: str, admitted: bool
) -> None:
    assert Caller.parse(asked).is_at(title, address) is admitted


def test_a_destination_may_have_an_address_of_any_kind() -> None:
    assert parse_peer("PACS@10.0.0.9:104") == Peer("PACS", "10.0.0.9", 104)
    assert parse_peer("PACS@[fd00::1]:104") == Peer("PACS", "fd00::1", 104)
    for wrong in ("PACS@host", "PACS@host:0", "host:104", "A\\B@host:104", "@host:104"):
        with pytest.raises(ConfigError):
            parse_peer(wrong)
