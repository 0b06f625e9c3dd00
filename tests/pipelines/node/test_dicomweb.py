"""DICOMweb as a source and as a destination, with Orthanc's plug-in as the peer."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import pydicom as _pydicom
import pytest
from support.certificates import authority
from support.dicom_pacs import Pacs, orthanc, web_options
from support.node_in_process import NodeInProcess
from support.node_world import phantom
from support.ports import reserved_port
from support.waiting import eventually
from support.web_server import MULTIPART, Archive, Asked, Reply, one_part, web_server

from cuda_cyclegan.io.dicom_network.errors import (
    CertificateError,
    ConnectionLostError,
    NetworkError,
    RefusedError,
)
from cuda_cyclegan.io.dicom_network.limits import WebLimits
from cuda_cyclegan.io.dicom_network.synthetic_series import write_synthetic_series
from cuda_cyclegan.io.dicom_network.web import WebPeer, web_link
from cuda_cyclegan.pipelines.errors import ConfigError
from cuda_cyclegan.pipelines.node.destination_test import test_destination as steps_of_test
from cuda_cyclegan.pipelines.node.events import Held, Queued, Received, Trouble
from cuda_cyclegan.pipelines.node.routes import (
    Source,
    parse_destination,
    parse_filters,
    parse_web_peer,
)
from cuda_cyclegan.pipelines.retries import Backoff

pydicom: Any = _pydicom
EVERY_STUDY = {"StudyDate": "19000101-"}


@pytest.fixture
def pacs(tmp_path: Path) -> Iterator[Pacs]:
    with orthanc(tmp_path / "pacs", **web_options()) as running:
        yield running


def peer_of(pacs: Pacs) -> WebPeer:
    return WebPeer(f"http://127.0.0.1:{pacs.http_port}/dicom-web")


@pytest.mark.process
def test_a_study_is_fetched_translated_and_stored_beside_its_source(
    pacs: Pacs, tmp_path: Path
) -> None:
    files = phantom(0).write(tmp_path / "source")
    pacs.store(files[:5])
    source = Source(peer_of(pacs), EVERY_STUDY)
    with NodeInProcess(tmp_path, source=source) as world:
        world.with_route(destination=peer_of(pacs))
        world.pass_time(31)
        eventually(lambda: world.node._fetchers["NODE"]._listed)
        pacs.store(files[5:])  # which were on their way at the first poll
        eventually(lambda: world.pass_time(31) or world.events(Queued))
        [queued] = world.events(Queued)
        assert queued.images == 8
        assert [event.objects for event in world.events(Received)] == [8]
        world.translate()
        world.wait_for_sends(1)
        [series] = pacs.series_by_study().values()
        assert sorted(series.values()) == [8, 8]
        # Its own result is found there, fetched once and left out.
        eventually(lambda: world.pass_time(31) or len(world.events(Received)) == 2)
        for _ in range(3):
            world.pass_time(31)
        world.stop()
        world.start()
        world.pass_time(31)
        eventually(lambda: world.node._fetchers["NODE"]._listed)
        world.pass_time(31)
        assert len(world.events(Queued)) == 1
        assert len(world.events(Received)) == 2
        assert not world.events(Trouble)


@pytest.mark.process
def test_a_source_that_is_away_is_awaited(tmp_path: Path) -> None:
    with reserved_port() as port:
        source = Source(WebPeer(f"http://127.0.0.1:{port}/dicom-web"), EVERY_STUDY)
        with NodeInProcess(tmp_path, source=source) as world:
            eventually(lambda: world.pass_time(31) or world.events(Trouble))
            [trouble] = world.events(Trouble)
            assert trouble.reason.endswith("/dicom-web: nothing answers there")


@pytest.mark.process
def test_objects_go_there_and_back_and_what_is_refused_is_named(pacs: Pacs, tmp_path: Path) -> None:
    files = write_synthetic_series(tmp_path)
    with web_link(peer_of(pacs), None) as link:
        link.echo()
        for file in files.values():
            link.store(file)
        [study] = link.studies({"PatientID": "CUDA-CYCLEGAN-TEST"})
        assert {one.instance for one in link.instances(study)} == files.keys()
    nowhere = WebPeer(f"http://127.0.0.1:{pacs.http_port}/nowhere")
    with web_link(nowhere, None) as link, pytest.raises(NetworkError, match="HTTP status 404"):
        link.store(next(iter(files.values())))


@pytest.mark.process
def test_a_destination_is_tested_over_the_web(pacs: Pacs, tmp_path: Path) -> None:
    with NodeInProcess(tmp_path) as world:
        route = replace(world.route, destination=peer_of(pacs))
        steps = list(steps_of_test(route, None))
    assert [trouble for _, trouble in steps] == [None] * 3


class _Guarded(BaseHTTPRequestHandler):
    """A server that wants a token, and refuses every object."""

    def do_GET(self) -> None:
        self._answer(200 if self.headers["Authorization"] == "Bearer letmein" else 401, b"[]")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(409, b"{}")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/dicom+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002
        pass


def test_a_token_is_read_from_its_file_each_time(tmp_path: Path) -> None:
    token, [image, *_] = tmp_path / "token", write_synthetic_series(tmp_path).values()
    with reserved_port() as port:
        peer = WebPeer(f"http://127.0.0.1:{port}", token)
        with ThreadingHTTPServer(("127.0.0.1", port), _Guarded) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            with pytest.raises(CertificateError, match="token"), web_link(peer, None):
                pass
            token.write_text("old")
            with web_link(peer, None) as link, pytest.raises(NetworkError, match="HTTP status 401"):
                link.echo()
            token.write_text("letmein\n")
            with web_link(peer, None) as link:
                link.echo()
                with pytest.raises(RefusedError, match="409"):
                    link.store(image)
            server.shutdown()
        with web_link(peer, None) as link, pytest.raises(ConnectionLostError):
            link.echo()


@pytest.mark.process
def test_https_needs_certificates_of_the_same_authority(tmp_path: Path) -> None:
    issue, stranger = authority(tmp_path / "ca"), authority(tmp_path / "other")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Guarded) as server:
        context = issue("server").server_context()
        server.socket = context.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, daemon=True).start()
        (tmp_path / "token").write_text("letmein")
        peer = WebPeer(f"https://127.0.0.1:{server.server_port}", tmp_path / "token")
        with web_link(peer, issue("node")) as link:
            link.echo()
        for wrong in (stranger("node"), None):
            with web_link(peer, wrong) as link, pytest.raises(NetworkError):
                link.echo()
        server.shutdown()


def test_only_urls_and_queries_that_can_be_are_taken(tmp_path: Path) -> None:
    token = tmp_path / "token"
    assert parse_destination("https://pacs/dicom-web/", token).url == "https://pacs/dicom-web"  # pyright: ignore[reportAttributeAccessIssue]
    assert parse_web_peer("http://localhost:8042/dicom-web", token).token == token
    for text, secret in [
        ("ftp://pacs", None),
        ("https://me:secret@pacs", None),
        ("https://pacs/dicom-web?StudyDate=19000101-", None),
        ("http://pacs/dicom-web", token),
    ]:
        with pytest.raises(ConfigError) as refused:
            parse_web_peer(text, secret)
        assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError, match="token"):
        parse_destination("PACS@host:104", token)
    web = WebPeer("http://pacs")
    assert parse_filters("ModalitiesInStudy=MR&PatientID=", web) == {
        "ModalitiesInStudy": "MR",
        "PatientID": "",
    }
    with pytest.raises(ConfigError, match="not a query"):
        parse_filters("MR", web)
    source = Source(WebPeer("http://pacs"), {"ModalitiesInStudy": "MR"})
    assert source.filters_at(datetime(2026, 11, 27, 7)) == {
        "StudyDate": "20261126-",
        "ModalitiesInStudy": "MR",
    }


def polled(world: NodeInProcess, condition: Callable[[], object]) -> None:
    """Let the source be polled until something holds."""
    eventually(lambda: world.pass_time(31) or condition())


@pytest.fixture
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause after a failure."""
    monkeypatch.setattr(Backoff, "lengthen", lambda _: None)


@pytest.mark.process
@pytest.mark.usefixtures("quick_polls")
def test_an_object_that_never_comes_delays_no_other(tmp_path: Path) -> None:
    files = [*phantom(0).write(tmp_path / "0"), *phantom(1).write(tmp_path / "1")]
    held = Archive(files)
    lost = next(iter(held.held))

    def answer(one: Asked) -> Reply | None:
        return None if one.path.endswith(f"/{lost}") else held.answer(one)

    with web_server(answer) as server:
        source = Source(server.peer, EVERY_STUDY)
        with NodeInProcess(tmp_path, source=source) as world:
            polled(world, lambda: len(world.objects()) == 15)
            assert {trouble.reason for trouble in world.events(Trouble)} == {
                f"NODE: nothing fetched from {server.peer}: it broke off while it answered WADO-RS"
            }
            lost = ""
            polled(world, lambda: len(world.objects()) == 16)
            polled(world, lambda: len(world.events(Queued)) == 2)


def half(content: bytes) -> bytes:
    return content[:-300]


def of_another_study(content: bytes) -> bytes:
    data = pydicom.dcmread(BytesIO(content))
    data.StudyInstanceUID = "1.2.3.4"
    return written(data)


def of_another_uid(content: bytes) -> bytes:
    data = pydicom.dcmread(BytesIO(content))
    data.SOPInstanceUID = data.file_meta.MediaStorageSOPInstanceUID = "1.2.3.4"
    return written(data)


def written(data: Any) -> bytes:
    out = BytesIO()
    data.save_as(out)
    return out.getvalue()


@pytest.mark.process
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (half, "its pixels are not complete"),
        (of_another_study, "its StudyInstanceUID differs from that of the request"),
        (of_another_uid, "its UIDs differ from those of the request"),
        (lambda content: content[132:], "an object that it sends is not a DICOM file"),
    ],
)
def test_an_object_that_is_not_what_was_asked_for_is_refused(
    change: Callable[[bytes], bytes], reason: str, tmp_path: Path
) -> None:
    held = Archive(phantom(0).write(tmp_path / "source"))
    wrong = next(iter(held.held))

    def answer(one: Asked) -> Reply:
        reply = held.answer(one)
        if one.path.endswith(f"/{wrong}"):
            return Reply(body=one_part(change(held.held[wrong])), media=MULTIPART)
        return reply

    with (
        web_server(answer) as server,
        NodeInProcess(tmp_path, source=Source(server.peer, EVERY_STUDY)) as world,
    ):
        polled(world, lambda: world.events(Received))
        [received] = world.events(Received)
        assert received.objects == len(world.objects()) == 7
        assert received.refusals == ((reason, 1),)
        world.pass_time(31)
        assert [held.gap for held in world.events(Held)]


@pytest.mark.process
def test_a_source_is_limited_as_its_route_says(tmp_path: Path) -> None:
    held = Archive(phantom(0).write(tmp_path / "source"))
    with web_server(held.answer) as server:
        source = Source(server.peer, EVERY_STUDY, limits=WebLimits(bytes=500, listed=7))
        with NodeInProcess(tmp_path, source=source) as world:
            eventually(lambda: world.pass_time(31) or world.events(Trouble))
            [trouble] = world.events(Trouble)
            assert trouble.reason.endswith("it lists more than 7 in one search")
