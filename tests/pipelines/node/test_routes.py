"""Who may send, by title and address, and which models a node takes."""

from pathlib import Path

import pytest
from support.batch_world import mixing_model, tiny_model

from cuda_cyclegan.io.dicom_network.sending import Peer
from cuda_cyclegan.pipelines.errors import ConfigError, SettingsError
from cuda_cyclegan.pipelines.jobs.queue.state import SchedulingClass
from cuda_cyclegan.pipelines.node.checking import check_routes
from cuda_cyclegan.pipelines.node.routes import Caller, Route, parse_peer
from cuda_cyclegan.pipelines.translate import Request


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


def test_a_model_of_several_channels_is_refused_before_anything_is_received(tmp_path: Path) -> None:
    def route(model: Path) -> dict[str, Route]:
        request, peer = Request((), model, tmp_path), Peer("PACS", "10.0.0.9", 104)
        return {"T": Route("T", request, SchedulingClass("normal"), (), peer)}

    check_routes(route(tiny_model(tmp_path / "one.safetensors")), None)
    two = mixing_model(tmp_path / "two.safetensors")
    with pytest.raises(SettingsError, match="route T takes 2 and makes 1 channels"):
        check_routes(route(two), None)
