"""The local server: what it serves, to whom, and what it never does."""

import http.client
import json
import struct
import threading
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from support.batch_world import scan
from support.waiting import ENOUGH

from cuda_cyclegan.pipelines.view.images import StudyImages
from cuda_cyclegan.pipelines.view.review import NAME, Change, Review, load_marks
from cuda_cyclegan.pipelines.view.server import UNSHOWN, ViewServer
from cuda_cyclegan.pipelines.view.studies import (
    ImageFile,
    ViewedStudy,
    Viewing,
    blinded,
    find_viewing,
)


@pytest.fixture
def server(tmp_path: Path) -> Generator[ViewServer]:
    given, made = scan(tmp_path / "scan.nii.gz"), scan(tmp_path / "results" / "made.nii.gz", 1)
    viewing = find_viewing((given, made))
    reviews = {folder: Review(folder / NAME, "anna") for folder in viewing.folders}
    with ViewServer(viewing, reviews, lambda nonce: f"<p>{nonce}</p>") as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def review_of(server: ViewServer) -> Review:
    [review] = server.reviews.values()
    return review


def asked(
    server: ViewServer, path: str, body: object = None, **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    """Status, content and headers; body: sent by POST as JSON, or as it is if it is bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=ENOUGH)
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with suppress(ConnectionError):  # a body that is refused unread; the answer is there
            connection.request("GET" if body is None else "POST", path, content, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def below(server: ViewServer, path: str) -> str:
    return urlsplit(server.url).path + path


def posted(server: ViewServer, path: str, body: object, **headers: str) -> int:
    origin = {"Origin": f"http://127.0.0.1:{server.server_port}", **headers}
    return asked(server, below(server, path), body, **origin)[0]


def test_the_page_has_a_nonce_of_its_own_each_time_and_may_load_nothing_else(
    server: ViewServer,
) -> None:
    pages = [asked(server, below(server, "")) for _ in range(2)]
    nonces = {page.decode().removeprefix("<p>").removesuffix("</p>") for _, page, _ in pages}
    assert len(nonces) == 2
    for status, _, headers in pages:
        assert status == 200
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert any(f"script-src 'nonce-{nonce}'" in policy for nonce in nonces)
        assert headers["Cache-Control"] == "no-store"
        assert headers["Referrer-Policy"] == "no-referrer"


def test_planes_are_sent_as_they_are_stored(server: ViewServer, tmp_path: Path) -> None:
    described = json.loads(asked(server, below(server, "study/0"))[1])
    assert described["shape"] == [20, 18, 16]
    assert described["faults"] == {}
    assert np.array(described["toSpace"]).shape == (4, 4)
    status, content, _ = asked(server, below(server, "plane/0/result/axial/3"))
    rows, columns, kind, _, slope, intercept = struct.unpack("<IIIIdd", content[:32])
    assert (status, rows, columns, kind, slope, intercept) == (200, 18, 20, 2, 1, 0)
    values = np.frombuffer(content[32:], "<i2").reshape(rows, columns)
    import nibabel

    voxels = np.asarray(nibabel.load(tmp_path / "results" / "made.nii.gz").dataobj)  # pyright: ignore
    np.testing.assert_array_equal(values, voxels[::-1, ::-1, 12].T)


def test_a_study_is_read_ahead(server: ViewServer, tmp_path: Path) -> None:
    assert asked(server, below(server, "ahead/0"))[0] == 200
    for thread in threading.enumerate():
        if thread.name.endswith("(_image)"):
            thread.join()
    (tmp_path / "scan.nii.gz").unlink()
    assert json.loads(asked(server, below(server, "study/0"))[1])["faults"] == {}


@pytest.mark.parametrize(
    "path",
    [
        *("study/1", "study/-1", "study/", "study/x", "study/0/..", "study/%30", "ahead/1"),
        *("plane/0/truth/axial/1", "plane/0/result/axial/16", "plane/0/result/oblique/1"),
        *("plane/0/result/axial/-1", "plane/0/../axial/1", "picture/0", "mark/0", "x"),
        *("../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "study/0?x", "results/made.nii.gz"),
    ],
)
def test_nothing_else_is_there(server: ViewServer, path: str) -> None:
    assert asked(server, below(server, path))[0] == 404


@pytest.mark.parametrize("path", ["/", "/x/", "//etc/passwd", "/favicon.ico", "/../../etc/passwd"])
def test_without_the_token_everything_is_refused(server: ViewServer, path: str) -> None:
    assert asked(server, path)[0] == 403
    changed = f"/{server.token[:-1]}{'a' if server.token[-1] != 'a' else 'b'}/"
    assert asked(server, changed)[0] == 403


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1", "127.0.0.1:1", "evil.127.0.0.1"])
def test_another_name_of_this_host_is_refused(server: ViewServer, host: str) -> None:
    assert asked(server, below(server, ""), Host=host)[0] == 403
    assert asked(server, below(server, ""), Host=f"localhost:{server.server_port}")[0] == 200


def test_a_mark_is_stored_for_its_study(server: ViewServer) -> None:
    """A change of one field keeps the other, and the answer is what is stored."""
    assert posted(server, "mark/0", {"mark": "bad", "comment": "<b>"}) == 200
    assert posted(server, "mark/0", {"mark": "good"}) == 200
    [mark] = load_marks(review_of(server).file)
    assert (mark.study, mark.mark, mark.comment) == ("made.nii.gz", "good", "<b>")
    origin = f"http://127.0.0.1:{server.server_port}"
    answer = asked(server, below(server, "mark/0"), {"comment": "c"}, Origin=origin)[1]
    found = json.loads(answer)
    assert (found["mark"], found["comment"], found["others"]) == ("good", "c", [])
    assert posted(server, "mark/0", {"mark": None, "comment": ""}) == 200
    assert review_of(server).marks == ()


def test_the_mark_of_another_reader_is_sent_after_the_own_one(server: ViewServer) -> None:
    Review(review_of(server).file, "bert").put("made.nii.gz", Change(mark="bad", comment="x"))
    origin = f"http://127.0.0.1:{server.server_port}"

    def others(**change: str | None) -> object:
        return json.loads(asked(server, below(server, "mark/0"), change, Origin=origin)[1])[
            "others"
        ]

    assert others(comment="only words") == []
    assert others(mark="good") == [["bert", "bad", "x"]]
    assert others(mark=None) == []


def test_a_comment_with_half_a_character_is_stored(server: ViewServer) -> None:
    assert posted(server, "mark/0", b'{"mark": "good", "comment": "fine \\ud83d"}') == 200
    assert review_of(server).own("made.nii.gz").comment == "fine \ud83d"


def test_a_blind_reading_shows_no_names_paths_and_notes(tmp_path: Path) -> None:
    results = tmp_path / "secret-results"
    for name in ("anna", "berta", "clara"):
        scan(results / f"{name}.nii.gz")
    (results / "berta.nii.gz").write_bytes(b"\x1f\x8bjunk")
    studies = [
        ViewedStudy(f"{n}.nii.gz", results, {"result": ImageFile(results / f"{n}.nii.gz")})
        for n in ("anna", "berta", "clara")
    ]
    viewing = blinded(Viewing("secret", tuple(studies)), 7)
    assert viewing == blinded(Viewing("secret", tuple(reversed(studies))), 7)
    orders = {tuple(one.name for one in blinded(viewing, seed).studies) for seed in range(20)}
    assert len(orders) > 3
    review, said = Review(results / NAME, "anna"), list[str]()
    with ViewServer(viewing, {results: review}, str, said.append) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        answers = [asked(server, below(server, f"study/{number}"))[1] for number in range(3)]
        assert posted(server, "mark/2", {"mark": "good"}) == 200
        review.file.unlink()
        review.file.mkdir()
        origin = f"http://127.0.0.1:{server.server_port}"
        answers.append(asked(server, below(server, "mark/2"), {"mark": "bad"}, Origin=origin)[1])
        server.shutdown()
        thread.join()
    assert UNSHOWN in b"".join(answers).decode()
    for hidden in (b"anna", b"berta", b"clara", b"secret", str(tmp_path).encode()):
        assert all(hidden not in answer for answer in answers)
    assert [mark.study for mark in review.marks] == [viewing.studies[2].name]
    assert str(review.file) in said[0]


@pytest.mark.parametrize(
    "origin", ["http://example.org", "null", "", "https://127.0.0.1", "http://127.0.0.1"]
)
def test_other_pages_cannot_mark(server: ViewServer, origin: str) -> None:
    assert posted(server, "mark/0", {"mark": "bad"}, Origin=origin) == 403
    assert not review_of(server).file.exists()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        ([1], 400),
        ({}, 400),
        ({"mark": "worse"}, 400),
        ({"mark": {"a": 1}}, 400),
        ({"comment": "x" * 3000}, 400),
        (b"x" * 70_000, 413),
    ],
)
def test_a_damaged_mark_changes_nothing(server: ViewServer, body: object, status: int) -> None:
    assert posted(server, "mark/0", body) == status
    assert not review_of(server).file.exists()


def test_a_mark_that_cannot_be_stored_is_reported_and_not_kept(server: ViewServer) -> None:
    review_of(server).file.mkdir()
    assert posted(server, "mark/0", {"mark": "good"}) == 500
    assert review_of(server).marks == ()


@pytest.mark.parametrize("size", ["9" * 5000, "-1", "1e3", "", " "])
def test_a_length_that_is_no_number_is_refused(server: ViewServer, size: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=ENOUGH)
    connection.putrequest("POST", below(server, "mark/0"))
    connection.putheader("Origin", f"http://127.0.0.1:{server.server_port}")
    connection.putheader("Content-Length", size)
    connection.endheaders()
    assert connection.getresponse().status == 400
    connection.close()


def test_a_fault_of_the_program_is_reported(
    server: ViewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: int) -> StudyImages:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(server.images, "study", broken)
    status, content, _ = asked(server, below(server, "study/0"))
    assert (status, content) == (500, b"ZeroDivisionError: oops; this looks like a bug")
