"""Senders that may send, by title and address."""

import pytest

from cuda_cyclegan.io.dicom_network.requesting import Peer
from cuda_cyclegan.io.dicom_network.syslog import SyslogServer
from cuda_cyclegan.pipelines.errors import ConfigError
from cuda_cyclegan.pipelines.node.routes import Caller, parse_peer, parse_syslog


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


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("logs.example.org", "logs.example.org", 6514),
        ("logs.example.org:1", "logs.example.org", 1),
        ("10.0.0.9:65535", "10.0.0.9", 65535),
        ("[fd00::1]:601", "fd00::1", 601),
        ("[fd00::1]", "fd00::1", 6514),
    ],
)
def test_a_syslog_server_is_a_host_with_or_without_a_port(text: str, host: str, port: int) -> None:
    assert parse_syslog(text) == SyslogServer(host, port)


@pytest.mark.parametrize(
    "text", ["", ":601", "host:", "host:0", "host:65536", "host:x", "a b", "fd00::1", "[a", "a]:1"]
)
def test_other_texts_are_no_syslog_server(text: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST or HOST:PORT, such as logs"):
        parse_syslog(text)
