"""A node whose DICOMweb server needs access tokens: token failures delay, and lose nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.audit_trails import code, lines
from support.node_in_process import NodeInProcess
from support.node_world import phantom
from support.waiting import eventually
from support.web_server import Archive, Asked, Reply, encoded, web_server

from cuda_cyclegan.io.dicom_network.access_tokens import ClientCredentials
from cuda_cyclegan.io.dicom_network.web import WebPeer
from cuda_cyclegan.pipelines.node import delivery, periodic_thread
from cuda_cyclegan.pipelines.node.events import NotSent, Queued, Trouble
from cuda_cyclegan.pipelines.node.routes import Source
from cuda_cyclegan.pipelines.retries import Backoff

pytestmark = pytest.mark.process


@dataclass
class Provider:
    """Server and token endpoint in one.

    grants: whether it issues tokens. uses: requests for which a token is accepted.
    """

    archive: Archive = field(default_factory=Archive)
    grants: bool = True
    uses: int = 1000
    issued: int = 0
    left: int = 0

    def __call__(self, asked: Asked) -> Reply:
        if asked.path == "/token":
            if not self.grants:
                return Reply(401, encoded({"error": "invalid_client"}))
            self.issued += 1
            self.left = self.uses
            token = {"access_token": f"t{self.issued}", "token_type": "Bearer"}
            return Reply(body=encoded(token))
        self.left -= 1
        if self.left < 0 or asked.headers.get("Authorization") != f"Bearer t{self.issued}":
            return Reply(401)
        return self.archive.answer(asked)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("secret")
    return file


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeInProcess]:
    monkeypatch.setattr(delivery, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(delivery, "LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(periodic_thread, "POLL_SECONDS", 0.02)
    with NodeInProcess(tmp_path) as found:
        yield found


def peer_at(port: int, secret: Path) -> WebPeer:
    root = f"http://127.0.0.1:{port}"
    return WebPeer(f"{root}/dicom-web", ClientCredentials(f"{root}/token", "node", secret))


def translated(world: NodeInProcess, secret: Path) -> None:
    world.with_route(destination=peer_at(world.destination, secret))
    world.send(phantom(0).datasets())
    world.queue_up()
    world.translate()


def assert_alert(world: NodeInProcess) -> None:
    """Check that the audit trail has the failure to get a token."""
    [alert, *_] = [one for one in lines(world.folder / "audit") if code(one) == "110113/110126/4"]
    reason = alert["EventIdentification"]["EventOutcomeDescription"]["text"]
    assert reason.startswith("no access token from ")


def test_results_wait_for_a_token_and_are_sent_once(world: NodeInProcess, secret: Path) -> None:
    provider = Provider(grants=False)
    world.with_settings(audit=world.folder / "audit")
    with web_server(provider, world.destination) as server:
        translated(world, secret)
        eventually(lambda: world.node.step() or len(world.events(NotSent)) > 1)
        assert {event.what for event in world.events(NotSent)} == {str(world.route.destination)}
        assert world.series()[0].reason == (
            f"no access token from http://127.0.0.1:{world.destination}/token: it answers "
            "invalid_client: it does not accept client-id or client secret"
        )
        provider.grants = True
        world.wait_for_sends(1)
    assert world.states() == ["sent"]
    world.stop()
    assert_alert(world)
    assert server.count("POST") - sum(one.path == "/token" for one in server.asked) == 8


def test_tokens_that_end_within_a_result_are_renewed(world: NodeInProcess, secret: Path) -> None:
    provider = Provider(uses=3)
    with web_server(provider, world.destination):
        translated(world, secret)
        world.wait_for_sends(1)
    assert len(provider.archive.held) == 8
    assert provider.issued == 3
    assert not world.events(NotSent)


def test_an_endpoint_that_fails_within_a_result_has_no_object_refused(
    world: NodeInProcess, secret: Path
) -> None:
    provider = Provider(uses=3)

    class Failing(Provider):
        def __call__(self, asked: Asked) -> Reply:
            provider.grants = provider.issued == 0
            return provider(asked)

    with web_server(Failing(), world.destination):
        translated(world, secret)
        eventually(lambda: world.node.step() or world.events(NotSent))
        assert len(provider.archive.held) == 3
        [first, *_] = world.events(NotSent)
        assert first.reason.startswith("no access token from ")  # and not so many refused objects
        assert world.states() == ["sending"]


def test_a_source_is_polled_again_once_there_are_tokens(
    tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backoff, "lengthen", lambda _: None)
    provider = Provider(Archive(phantom(0).write(tmp_path / "source")), grants=False)
    with web_server(provider) as server:
        source = Source(peer_at(server.port, secret), {"StudyDate": "19000101-"})
        with NodeInProcess(tmp_path, source=source) as world:
            world.with_settings(audit=world.folder / "audit")
            eventually(lambda: world.pass_time(31) or world.events(Trouble))
            [trouble] = world.events(Trouble)
            assert "nothing fetched" in trouble.reason
            assert "invalid_client" in trouble.reason
            provider.grants = True
            eventually(lambda: world.pass_time(31) or world.events(Queued))
            assert len(world.objects()) == 8
        assert_alert(world)
    assert provider.issued == 1  # for all polls
