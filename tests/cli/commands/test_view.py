"""The view command: a page on this machine, marks beside the results, and two readers compared."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from support.batch_world import scan, stored
from support.chromium import needs_chromium, opened_page, wait_for_announcement, wait_until
from support.dicom_phantoms import Phantom
from support.processes import started
from support.reports import BATCH, failed, row, written
from support.translate_world import World
from support.waiting import ENOUGH, eventually
from typer.testing import CliRunner, Result

import cuda_cyclegan as cc
from cuda_cyclegan.cli.app import app
from cuda_cyclegan.pipelines.results.resume import preview_of
from cuda_cyclegan.pipelines.view.review import Change, Grade, Review, load_marks

if TYPE_CHECKING:
    from playwright.sync_api import Page

SHAPE = (40, 48, 32)
STUDIES = ("anna", "berta", "clara")


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[Path, Path]:
    """Scans of a bright ball, and results in which it is darker by 100, and a bar beside it."""
    i, j, k = np.indices(SHAPE)
    ball = (((i - 20) / 14) ** 2 + ((j - 24) / 18) ** 2 + ((k - 16) / 10) ** 2 < 1) * 800
    for at, name in enumerate(STUDIES):
        given = (ball + 40 * (i > 20) * (ball > 0) + 10 * at).astype(np.int16)
        stored(tmp_path / "scans" / f"{name}.nii.gz", given)
        made = given - 100 * (ball > 0)
        made[2:6, 10:40] = 600
        stored(tmp_path / "results" / f"{name}.nii.gz", made.astype(np.int16))
    return tmp_path / "scans", tmp_path / "results"


@contextmanager
def viewed(
    *words: object, reader: str = "anna", **started_with: Any
) -> Generator[tuple[str, "subprocess.Popen[str]"]]:
    """The address of a page that is served meanwhile to a reader."""
    command = [sys.executable, "-m", "cuda_cyclegan", "view", "--reader", reader, *map(str, words)]
    if "env" not in started_with:
        command.append("--no-browser")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started(command, **pipes, **started_with) as process:
        out: IO[str] = process.stdout
        url = out.readline().strip()
        assert url, process.stderr.read()
        yield url, process


def compared(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["view", *map(str, arguments)])


@pytest.mark.process
def test_a_page_is_served_until_ctrl_c(pairs: tuple[Path, Path]) -> None:
    with viewed(*pairs) as (url, process):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", url)
        with urllib.request.urlopen(url) as answer:
            page = answer.read().decode()
        assert "<title>results</title>" in page
        assert "Not for diagnosis" in page
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(url[:-2] + "/")
        process.send_signal(signal.SIGINT)
        assert process.wait(ENOUGH) == 130


LOOK = """
import os, pathlib, re, select, sys, urllib.request
parent = os.pidfd_open(os.getppid())
address, seen = sys.argv[1], pathlib.Path(sys.argv[2])
lead = urllib.request.urlopen(address).read().decode()
found = re.search('href="(.*?)"', lead)[1]
page = urllib.request.urlopen(found).read().decode()
file = pathlib.Path(address.removeprefix("file://"))
modes = [oct(path.stat().st_mode & 0o777) for path in (file, file.parent)]
part = seen.with_suffix(".part")
part.write_text("\\n".join([address, found, *modes, str("<title>results</title>" in page)]))
part.rename(seen)
select.select([parent], [], [])  # as a browser that its user does not leave
"""


@pytest.mark.process
def test_a_browser_in_the_terminal_is_served_and_no_command_line_has_the_address(
    pairs: tuple[Path, Path], tmp_path: Path
) -> None:
    """The browser gets a file for this user only, in a folder of the home that is not hidden."""
    home, seen = tmp_path / "home", tmp_path / "seen"
    home.mkdir()
    (tmp_path / "look.py").write_text(LOOK)
    browser = f"{sys.executable} {tmp_path / 'look.py'} %s {seen}"
    with viewed(*pairs, env={**os.environ, "BROWSER": browser, "HOME": str(home)}) as (
        url,
        process,
    ):
        eventually(seen.exists)
        address, found, *modes, has_page = seen.read_text().split("\n")
        assert (found, modes, has_page) == (url, ["0o600", "0o700"], "True")
        assert urlsplit(url).path not in address
        [folder] = home.iterdir()
        assert address == (folder / "open.html").as_uri()
        assert not folder.name.startswith(".")
        process.send_signal(signal.SIGINT)
        assert process.wait(ENOUGH) == 130
    assert list(home.iterdir()) == []


def mark(file: Path, reader: str, **grades: Grade) -> Path:
    """A file of a reader's marks on studies."""
    review = Review(file, reader)
    for name, grade in grades.items():
        review.put(f"{name}.nii.gz", Change(mark=grade))
    return file


def test_readers_are_compared(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    """The results' own file has one reader, others have more, each under its name."""
    own = mark(pairs[1] / "review.csv", "anna", anna="good", berta="bad", clara="bad")
    second = mark(tmp_path / "second.csv", "bert", anna="good", berta="bad", clara="good")
    result = compared(pairs[1], "--compare", second)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "reader  good  doubtful  bad  marked",
        "─" * 35,
        "anna       1         0    2  3",
        "bert       2         0    1  3",
        "anna and bert: 3 studies marked by all, 2 alike (67 %)",
        "Cohen's kappa: 0.40",
        "- clara.nii.gz: bad by anna, good by bert",
    ]
    mark(own, "carl", anna="good", berta="doubtful", clara="good")
    result = compared(pairs[1], "--compare", second, "--compare", own)
    assert "anna, carl and bert: 3 studies marked by all, 1 alike (33 %)" in result.stdout
    assert "Fleiss' kappa: 0.22" in result.stdout
    result = compared(pairs[1], "--compare", pairs[0] / "anna.nii.gz")
    assert result.exit_code == 2
    assert "anna.nii.gz is not a review" in " ".join(result.output.split())


def test_a_table_that_is_no_review_is_refused_and_stays(
    pairs: tuple[Path, Path], tmp_path: Path
) -> None:
    (table := tmp_path / "participants.csv").write_text("participant_id,age\nsub-01,34\n")
    result = compared(pairs[1], "--review", table)
    assert result.exit_code == 2
    assert "participants.csv is not a review" in " ".join(result.output.split())
    assert table.read_text() == "participant_id,age\nsub-01,34\n"


@pytest.mark.parametrize(
    "options",
    [
        *(["--reader", " "], ["--reader", "a\nb"], ["--with-marks"]),
        ["--random-order", "1", "--export", "x"],
    ],
)
def test_options_that_contradict_are_wrong_usage(
    pairs: tuple[Path, Path], options: list[str]
) -> None:
    assert compared(pairs[1], *options).exit_code == 2


@pytest.mark.process
def test_marks_of_studies_that_are_not_shown_are_named(pairs: tuple[Path, Path]) -> None:
    file = mark(pairs[1] / "review.csv", "anna", anna="good", gone="bad")
    before = file.read_bytes()
    with viewed(*pairs) as (_, process):
        process.send_signal(signal.SIGINT)
        _, words = process.communicate(timeout=ENOUGH)
    assert "has marks of 1 study not shown here, which are kept: gone.nii.gz" in words
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [("absent",), ("results", "--compare", "absent.csv"), ("scans", "results", "results")],
)
def test_missing_path_is_wrong_usage(
    pairs: tuple[Path, Path], arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pairs[0].parent)
    result = compared(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_the_last_report_is_kept_beside_the_record(tmp_path: Path) -> None:
    """The report has the rows of earlier runs of the same batch, without any option."""
    world = World(tmp_path)
    scan(world.inputs / "a.nii.gz")
    assert world.translate().exit_code == 0
    [kept] = tmp_path.glob(".*.cuda-cyclegan/report.json")
    assert json.loads(kept.read_text())["studies"][0]["stages"]
    assert world.translate().exit_code == 0
    again = json.loads(kept.read_text())
    assert again["runs"] == 2
    assert again["studies"][0]["status"] == "translated"


# -- In a real browser ------------------------------------------------------------------------


def ready(page: "Page") -> None:
    page.wait_for_selector("#viewer[data-ready=true]")


def levels(page: "Page", role: str, plane: str = "axial") -> "np.ndarray[Any, Any]":
    """Return what a canvas shows, [row, column, RGB]."""
    found = page.evaluate(
        """([role, plane]) => {
          const figure = document.querySelector(`figure[data-role=${role}]`);
          const canvas = figure.querySelector(`[data-plane=${plane}] canvas`);
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return [canvas.height, canvas.width, Array.from(data)];
        }""",
        [role, plane],
    )
    rows, columns, values = found
    return np.array(values, np.uint8).reshape(rows, columns, 4)[..., :3]


@pytest.mark.slow
@needs_chromium
def test_a_study_is_scrolled_compared_and_marked(pairs: tuple[Path, Path]) -> None:
    with viewed(*pairs) as (url, _), opened_page() as page:
        page.goto(url)
        assert page.title() == "results"
        page.click("text=berta.nii.gz")
        ready(page)
        assert page.inner_text("#viewer h2") == "berta.nii.gz"
        middle = levels(page, "input")
        assert middle.max() > 200  # the ball
        values = [page.inner_text(f"output[data-role={role}]") for role in ("input", "result")]
        assert [int(value) for value in values] == [810, 710]
        assert page.inner_text("output[data-role=difference]") == "-100"
        red, _, blue = levels(page, "difference")[24, 20].astype(int)
        assert blue > red + 20  # the result is darker
        assert levels(page, "difference")[..., 0].max() > 200  # but for its bar

        page.keyboard.press("ArrowDown")
        ready(page)
        page.mouse.move(200, 300)
        for _ in range(14):
            page.mouse.wheel(0, 40)
        ready(page)
        wait_until(page, "viewer.state.cursor[2] === 31")
        ready(page)
        assert levels(page, "input").mean() < middle.mean() / 2

        page.keyboard.press("PageUp")
        ready(page)
        alone = levels(page, "result")
        page.keyboard.press("o")
        ready(page)
        assert not np.array_equal(levels(page, "result"), alone)
        page.keyboard.press("k")
        page.keyboard.press("v")
        page.keyboard.press("s")

        page.keyboard.press("2")
        page.keyboard.press("c")
        page.keyboard.type("<i>edge</i> 1")
        page.keyboard.press("Escape")
        wait_until(page, "document.getElementById('announcement').textContent.length > 0")
        page.keyboard.press("ArrowRight")
        wait_until(page, "document.querySelector('#viewer h2').textContent[0] === 'c'")
        page.keyboard.press("3")
        wait_for_announcement(page, "clara.nii.gz is marked bad")
        page.keyboard.press("Escape")
        page.wait_for_selector(".badge.doubtful")
        page.reload()
        assert page.inner_text("tr:has-text('berta') .mark").split("\n") == [
            "doubtful",
            "<i>edge</i> 1",
        ]
    assert stored_marks(pairs[1]) == {"berta.nii.gz": "doubtful", "clara.nii.gz": "bad"}


def stored_marks(folder: Path) -> dict[str, str]:
    """Marks of the studies in a folder."""
    return {mark.study: mark.mark or "" for mark in load_marks(folder / "review.csv")}


def coarse(page: "Page", area: str) -> "np.ndarray[Any, Any]":
    """Mean luminance of 8 x 8 fields of what the screen shows of the first element of a kind."""
    shown = Image.open(BytesIO(page.locator(area).first.screenshot())).convert("L")
    return np.asarray(shown.resize((8, 8), Image.Resampling.BOX), float)


def alike(seen: "np.ndarray[Any, Any]", expected: "np.ndarray[Any, Any]") -> float:
    """Correlation of fields on the screen with a plane of a volume, [row, column]."""
    plane = Image.fromarray(expected.astype(np.float32)).resize((8, 8), Image.Resampling.BOX)
    return float(np.corrcoef(seen.ravel(), np.asarray(plane, float).ravel())[0, 1])


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_the_screen_shows_the_planes_of_the_volumes(
    pairs: tuple[Path, Path], width: int, height: int
) -> None:
    """Orientation is that of the patient, at the width of a desktop and of a telephone; compared
    coarsely.
    """
    import nibabel

    volume: Any = nibabel.load(pairs[1] / "anna.nii.gz")  # pyright: ignore
    result = np.asarray(volume.dataobj)[::-1, ::-1, ::-1]  # to L, P and I
    planes = {
        "axial": result[:, :, 16].T,
        "coronal": result[:, 24, :].T,
        "sagittal": result[20].T,
    }
    with viewed(*pairs) as (url, _), opened_page(width, height) as page:
        page.goto(f"{url}#0")
        ready(page)
        for plane, expected in planes.items():
            seen = coarse(page, f"figure[data-role=result] [data-plane={plane}] .frame")
            assert alike(seen, expected) > 0.9, plane
        page.keyboard.press("v")
        ready(page)
        frame = "figure[data-role=result] [data-main=true] .frame"
        assert alike(coarse(page, frame), planes["coronal"]) > 0.9
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("text=Not for diagnosis").last.is_visible()


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_list_follows_the_colours_of_the_system(
    pairs: tuple[Path, Path], scheme: Literal["light", "dark"]
) -> None:
    for name in STUDIES:
        made = pairs[1] / f"{name}.nii.gz"
        cc.preview(made, pairs[0] / made.name).save(preview_of(made))
    with viewed(*pairs) as (url, _), opened_page(scheme=scheme) as page:
        page.goto(url)
        wait_until(page, "[...document.images].every((image) => image.naturalWidth > 0)")
        paper = float(np.median(coarse(page, "body")))
        assert (paper > 230) if scheme == "light" else (paper < 50)
        picture = coarse(page, ".thumbnail img")
        assert picture.max() > 2 * picture.min() + 10
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
        page.click("[data-shape=pictures]")
        assert page.locator(".cards article").count() == len(STUDIES)


NAMED = {"button", "checkbox", "combobox", "image", "link", "searchbox", "slider", "spinbutton"}
NAMED |= {"dialog", "region", "table", "textbox"}


def unnamed(page: "Page") -> list[str]:
    """Roles of parts that a screen reader meets without a name."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    met = [node for node in nodes if not node["ignored"] and node["role"]["value"] in NAMED]
    assert len(met) > 5
    return [node["role"]["value"] for node in met if not node["name"]["value"]]


@pytest.mark.slow
@needs_chromium
def test_the_list_is_one_stop_of_tab_and_everything_has_a_name(pairs: tuple[Path, Path]) -> None:
    with viewed(*pairs) as (url, _), opened_page() as page:
        page.goto(url)
        assert unnamed(page) == []

        def stops() -> list[str]:
            """Studies that Tab reaches from the filter, until it leaves the list."""
            page.focus("th:last-of-type button")
            found: list[str] = []
            while True:
                page.keyboard.press("Tab")
                if not page.evaluate("document.activeElement.closest('tbody')"):
                    return found
                found.append(page.evaluate("document.activeElement.textContent"))

        first, second, third = (f"{name}.nii.gz" for name in STUDIES)
        assert stops() == [first]
        page.focus(f"a:has-text('{first}')")
        page.keyboard.press("ArrowDown")
        assert stops() == [second]
        page.fill("[data-part=filter]", "clara")
        assert stops() == [third]
        page.goto(f"{url}#0")
        ready(page)
        assert unnamed(page) == []
        assert page.is_disabled("[data-part=previous]")
        assert page.is_enabled("[data-part=next]")


NAMESPACE = ["unshare", "--net", "--map-root-user"]
needs_namespace = pytest.mark.skipif(
    not (shutil.which("unshare") and shutil.which("ip"))
    or subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode != 0,
    reason="needs a network namespace",
)


@pytest.mark.slow
@needs_chromium
@needs_namespace
def test_pages_need_no_other_host() -> None:
    """The tests of page and export pass where there is nothing but this machine's own loopback."""
    script = 'ip link set lo up && exec "$@"'
    tests = [f"{__file__}::test_a_study_is_scrolled_compared_and_marked"]
    tests += [f"{__file__}::test_an_export_works_from_a_disk_and_its_marks_are_saved_to_a_file"]
    command = [*NAMESPACE, "sh", "-c", script, "sh", sys.executable, "-m", "pytest"]
    options = ["--slow", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *options, *tests], capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@needs_chromium
def test_the_policy_stops_foreign_scripts_and_requests(tmp_path: Path) -> None:
    """A name is shown as text, whatever is in it."""
    name = "<img src=x onerror=document.title=1>.nii.gz"
    scan(tmp_path / "results" / name)
    with viewed(tmp_path / "results") as (url, _), opened_page(faults=None) as page:
        page.goto(url)
        assert page.inner_text("td.name") == name
        page.evaluate(
            """async () => {
              window.stopped = [];
              document.addEventListener("securitypolicyviolation", (event) => {
                stopped.push(event.effectiveDirective);
              });
              const script = document.createElement("script");
              script.textContent = "document.title = 'run'";
              document.body.append(script);
              document.body.insertAdjacentHTML("beforeend", "<p onclick='document.title = 1'></p>");
              document.body.lastChild.click();
              const image = document.createElement("img");
              image.src = "http://192.0.2.1/x.png";
              document.body.append(image);
              await fetch("http://192.0.2.1/").catch(() => {});
            }"""
        )
        wait_until(page, "stopped.length >= 4")
        assert sorted(page.evaluate("stopped")) == [
            *("connect-src", "img-src", "script-src-attr", "script-src-elem")
        ]
        assert page.title() == "results"


@pytest.mark.slow
@needs_chromium
def test_dicom_is_shown_as_the_program_reads_it(tmp_path: Path) -> None:
    Phantom().write(tmp_path / "scans")
    with viewed(tmp_path / "scans", tmp_path / "scans") as (url, _), opened_page() as page:
        page.goto(f"{url}#0")
        ready(page)
        assert page.inner_text("output[data-role=difference]") == "0 HU"
        assert levels(page, "input").max() > 100


BANNER = "[data-mark-part=banner]"
WHY = "[data-mark-part=why]"
GOOD = "[data-mark=good]"


def pressed(page: "Page", button: str) -> str | None:
    return page.get_attribute(button, "aria-pressed")


@pytest.mark.slow
@needs_chromium
def test_a_table_alone_that_a_spreadsheet_stored_is_read_and_kept(pairs: tuple[Path, Path]) -> None:
    table = "\ufeffstudy;reader;mark;comment;when\r\nberta.nii.gz;anna;Doubtful;fold;\r\n"
    table += "anna.nii.gz;bert;bad;;\r\ngone.nii.gz;bert;good;;\r\n"
    (pairs[1] / "review.csv").write_bytes(table.encode())
    with viewed(*pairs) as (url, _), opened_page() as page:
        page.goto(url)
        assert page.inner_text("tr:has-text('berta') .mark").split("\n") == ["doubtful", "fold"]
        assert page.inner_text("tr:has-text('anna') .mark") == ""  # blind
        page.goto(f"{url}#0")
        ready(page)
        page.keyboard.press("1")
        wait_for_announcement(page, "anna.nii.gz is marked good")
        assert page.inner_text("[data-part=others]") == "bert: bad"
    found = {(one.study, one.reader): one.mark for one in load_marks(pairs[1] / "review.csv")}
    assert found == {
        ("anna.nii.gz", "anna"): "good",
        ("anna.nii.gz", "bert"): "bad",
        ("berta.nii.gz", "anna"): "doubtful",
        ("gone.nii.gz", "bert"): "good",
    }


@pytest.mark.slow
@needs_chromium
def test_a_foreign_table_in_the_place_of_the_marks_stays_and_the_mark_waits(
    pairs: tuple[Path, Path],
) -> None:
    file = pairs[1] / "review.csv"
    with viewed(*pairs) as (url, _), opened_page(faults=None) as page:
        page.goto(f"{url}#0")
        ready(page)
        file.write_text("participant_id,age\nsub-01,34\n")
        page.keyboard.press("1")
        page.wait_for_selector(BANNER)
        assert "The mark of 1 study is not stored" in page.inner_text(WHY)
        assert "review.csv is not a review, and stays as it is" in page.inner_text(WHY)
        assert pressed(page, GOOD) == "mixed"
        assert file.read_text() == "participant_id,age\nsub-01,34\n"
        page.keyboard.press("c")
        page.keyboard.type("fold")
        file.unlink()
        wait_until(page, f"document.querySelector('{GOOD}').ariaPressed === 'true'")
        page.wait_for_selector(BANNER, state="hidden")
        wait_until(
            page,
            "page.studies[0].comment === 'fold' && !marks.isWaiting(page.studies[0], 'comment')",
        )
        assert page.input_value("[data-part=comment]") == "fold"
    [mark] = load_marks(file)
    assert (mark.mark, mark.comment) == ("good", "fold")


@pytest.mark.slow
@needs_chromium
def test_marks_wait_over_a_reload_while_the_server_cannot_store(pairs: tuple[Path, Path]) -> None:
    file = pairs[1] / "review.csv"
    with viewed(*pairs) as (url, _), opened_page(faults=None) as page:
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(f"{url}#0")
        ready(page)
        file.mkdir()  # nothing can be stored
        page.keyboard.press("3")
        page.wait_for_selector(BANNER)
        page.reload()
        ready(page)
        assert pressed(page, "[data-mark=bad]") == "mixed"
        file.rmdir()
        wait_for_announcement(page, "anna.nii.gz is marked bad")
        page.wait_for_selector(BANNER, state="hidden")
        page.reload()
        assert pressed(page, "[data-mark=bad]") == "true"
    assert stored_marks(pairs[1]) == {"anna.nii.gz": "bad"}


@pytest.mark.slow
@needs_chromium
def test_marks_of_a_dead_server_are_unmistakable_and_saved_to_a_file(
    pairs: tuple[Path, Path], tmp_path: Path
) -> None:
    mark(pairs[1] / "review.csv", "anna", anna="good")
    with viewed(*pairs) as (url, process), opened_page(faults=None) as page:
        page.goto(f"{url}#0")
        ready(page)
        process.kill()
        process.wait()
        page.keyboard.press("3")
        page.keyboard.press("c")
        page.keyboard.type('=fold, "left"')
        page.keyboard.press("Escape")
        page.wait_for_selector(BANNER)
        assert "does not answer" in page.inner_text(WHY)
        page.keyboard.press("ArrowRight")
        page.keyboard.press("2")
        wait_until(page, f"document.querySelector('{WHY}').textContent.includes('2 studies')")
        assert pressed(page, "[data-mark=doubtful]") == "mixed"
        page.keyboard.press("Escape")
        assert page.inner_text("tr:has-text('berta') .badge") == "doubtful, not stored"
        box = page.locator(BANNER).bounding_box()
        assert box
        assert box["height"] > 30
        assert box["y"] + box["height"] <= 800
        with page.expect_download() as download:
            page.click("[data-mark-part=save]")
        assert download.value.suggested_filename == "review-anna.csv"
        download.value.save_as(tmp_path / "saved.csv")
    assert stored_marks(pairs[1]) == {"anna.nii.gz": "good"}
    assert {(one.study, one.mark, one.comment) for one in load_marks(tmp_path / "saved.csv")} == {
        ("anna.nii.gz", "bad", '=fold, "left"'),
        ("berta.nii.gz", "doubtful", ""),
    }


HOLD_MARKS = """() => {
  window.held = [];
  const send = window.fetch;
  window.fetch = (path, request) => !path.startsWith("mark/") ? send(path, request) :
    new Promise((resolve, reject) => held.push({
      pass: async () => resolve(await send(path, request)),
      fail: () => reject(new Error("cut off")),
    }));
}"""


def let_through(page: "Page", announcement: str) -> None:
    """Store the marks that are held back, the last one first, until this is announced."""
    shown = f"document.getElementById('announcement').textContent === '{announcement}'"
    step = "while (held.length) await held.pop().pass();"
    wait_until(page, f"(async () => {{ {step} return {shown}; }})()")


@pytest.mark.slow
@needs_chromium
def test_the_last_mark_is_the_one_that_stays(pairs: tuple[Path, Path]) -> None:
    """The order holds however long requests take, and also if the one before fails."""
    with viewed(*pairs) as (url, _), opened_page() as page:
        page.goto(f"{url}#0")
        ready(page)
        page.evaluate(HOLD_MARKS)
        page.keyboard.press("1")
        page.keyboard.press("3")
        let_through(page, "anna.nii.gz is marked bad")
        assert stored_marks(pairs[1]) == {"anna.nii.gz": "bad"}
        page.keyboard.press("ArrowRight")
        ready(page)
        page.keyboard.press("1")
        page.keyboard.press("2")
        wait_until(page, "held.length && (held.shift().fail(), true)")
        let_through(page, "berta.nii.gz is marked doubtful")
        assert page.get_attribute("[data-mark=doubtful]", "aria-pressed") == "true"
    assert stored_marks(pairs[1]) == {"anna.nii.gz": "bad", "berta.nii.gz": "doubtful"}


@pytest.mark.slow
@needs_chromium
def test_keys_and_words_belong_to_the_study_that_was_shown(pairs: tuple[Path, Path]) -> None:
    """The same holds if several keys wait for a busy browser, and if a comment is left by the
    browser's back button.
    """
    with viewed(*pairs) as (url, _), opened_page() as page:
        page.goto(f"{url}#0")
        ready(page)
        page.evaluate(
            """() => {
              for (const key of ["ArrowRight", "1", "ArrowRight", "3"])
                document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
            }"""
        )
        wait_for_announcement(page, "clara.nii.gz is marked bad")
        ready(page)
        page.keyboard.press("c")
        page.keyboard.type("edge")
        page.evaluate("location.hash = '#0'")
        wait_until(page, "document.querySelector('#viewer h2').textContent[0] === 'a'")
        assert page.input_value("[data-part=comment]") == ""
        wait_until(page, "page.studies[2].comment === 'edge'")
        page.reload()
        ready(page)
        assert page.evaluate("page.studies.map((one) => one.comment)") == ["", "", "edge"]
    assert stored_marks(pairs[1]) == {"berta.nii.gz": "good", "clara.nii.gz": "bad"}


@pytest.fixture
def exported(pairs: tuple[Path, Path], tmp_path: Path) -> Path:
    """The page of a folder that was written for a disk."""
    result = compared(*pairs, "--export", tmp_path / "usb")
    assert result.exit_code == 0, result.output
    return tmp_path / "usb" / "index.html"


def test_an_export_is_a_new_folder_of_a_page_and_a_script_a_study(
    exported: Path, pairs: tuple[Path, Path]
) -> None:
    assert {path.name for path in exported.parent.iterdir()} == {
        *("index.html", "0.js", "1.js", "2.js")
    }
    assert "http://127" not in exported.read_text()
    before = exported.read_bytes()
    assert compared(*pairs, "--export", exported.parent).exit_code == 2
    assert exported.read_bytes() == before


def test_results_of_another_program_have_measures(exported: Path) -> None:
    data = exported.read_text().split('id="page-data">')[1].split("</script>")[0]
    page = json.loads(data)
    assert {"edges", "match", "shift"} <= {one["key"] for one in page["measures"]}
    assert all(study["match"] is not None for study in page["studies"])
    assert not any(study["state"] == "" for study in page["studies"])


@pytest.mark.slow
@needs_chromium
def test_an_export_works_from_a_disk_and_its_marks_are_saved_to_a_file(
    exported: Path, pairs: tuple[Path, Path], tmp_path: Path
) -> None:
    with opened_page() as page:
        page.goto(exported.as_uri())
        page.click("text=berta.nii.gz")
        ready(page)
        assert abs(float(page.inner_text("output[data-role=input]")) - 810) < 5
        assert abs(float(page.inner_text("output[data-role=difference]")) + 100) < 10
        for plane in ("axial", "coronal", "sagittal"):
            assert levels(page, "input", plane).max() > 200
        page.keyboard.press("PageDown")
        ready(page)
        page.keyboard.press("1")
        name_reader(page, "bert")
        wait_for_announcement(page, "berta.nii.gz is marked good")
        page.keyboard.press("Escape")
        page.reload()
        with page.expect_download() as download:
            page.click("text=Save marks")
        download.value.save_as(tmp_path / "second.csv")
    mark(pairs[1] / "review.csv", "anna", berta="bad")
    result = compared(pairs[1], "--compare", tmp_path / "second.csv")
    assert "anna and bert: 1 study marked by all, 0 alike (0 %)" in result.stdout


def name_reader(page: "Page", name: str) -> None:
    """Answer the page's question for a name."""
    page.fill("[data-mark-part=name]", name)
    page.keyboard.press("Enter")


@pytest.mark.slow
@needs_chromium
def test_the_page_of_a_colleague_has_no_marks_but_the_own_ones(
    pairs: tuple[Path, Path], tmp_path: Path
) -> None:
    own = mark(pairs[1] / "review.csv", "anna", anna="good", berta="good", clara="bad")
    Review(own, "anna").put("anna.nii.gz", Change(comment="a note"))
    assert compared(*pairs, "--export", tmp_path / "usb").exit_code == 0
    address = (tmp_path / "usb" / "index.html").as_uri()
    with opened_page() as page:
        page.goto(address)
        assert "a note" not in page.content()
        assert page.locator(".badge").count() == 0
        page.click("text=anna.nii.gz")
        ready(page)
        assert "256 grey levels" in page.inner_text("[data-part=levels]")
        assert page.locator("[data-part=windows] select").count() == 0
        page.keyboard.press("3")
        page.keyboard.press("Escape")  # no name, no mark
        assert pressed(page, "[data-mark=bad]") == "false"
        page.keyboard.press("3")
        name_reader(page, "bert")
        wait_for_announcement(page, "anna.nii.gz is marked bad")
        page.keyboard.press("Escape")
        with page.expect_download() as download:
            page.click("text=Save marks")
        download.value.save_as(tmp_path / "bert.csv")
        page.click("[data-part=reader]")
        name_reader(page, "carl")
        wait_until(page, "page.studies.every((study) => study.mark === null)")
    result = compared(pairs[1], "--compare", tmp_path / "bert.csv")
    assert "anna and bert: 1 study marked by all, 0 alike (0 %)" in result.stdout
    assert [one.reader for one in load_marks(tmp_path / "bert.csv")] == ["bert"]
    assert compared(*pairs, "--export", tmp_path / "all", "--with-marks").exit_code == 0
    assert "a note" in (tmp_path / "all" / "index.html").read_text()


@pytest.mark.slow
@needs_chromium
def test_an_export_shows_no_planes_of_a_study_that_was_left(exported: Path) -> None:
    """Images of that study may arrive after those of the next one."""
    with opened_page() as page:
        page.goto(exported.as_uri())
        page.evaluate(
            """() => {
              const receive = window.receiveStudy;
              window.receiveStudy = (number, ...study) => {
                if (number === 2) window.late = () => receive(number, ...study);
                else receive(number, ...study);
              };
            }"""
        )
        page.click("text=clara.nii.gz")
        wait_until(page, "'late' in window")
        page.keyboard.press("ArrowLeft")
        ready(page)
        page.evaluate("late()")
        page.keyboard.press("v")  # planes of another direction
        page.keyboard.press("ArrowDown")
        ready(page)
        assert abs(float(page.inner_text("output[data-role=input]")) - 810) < 5, "clara's is 820"


@pytest.mark.slow
@needs_chromium
def test_a_thousand_studies_are_sorted_filtered_and_marked(tmp_path: Path) -> None:
    rows = [row(f"sub-{number:04}.nii", 1.0 + number / 100) for number in range(990)]
    bad = [failed(f"bad-{number}.nii", f"bad-{number}.nii is truncated.") for number in range(10)]
    stored = written(replace(BATCH, studies=(*rows, *bad)), tmp_path / "night.json")
    page_file = tmp_path / "night.html"
    made = CliRunner().invoke(app, ["report", str(stored), "--html", str(page_file)])
    assert made.exit_code == 0, made.output
    with opened_page(width=390, height=844) as page:
        page.goto(page_file.as_uri())
        count = "[data-part=count]"
        assert page.inner_text(count) == "1000 studies"
        assert page.inner_text(".causes summary").split(maxsplit=1)[0] == "10"
        page.click("th button:has-text('Seconds')")
        assert page.inner_text("tbody tr:first-child td.name") == "sub-0989.nii"
        page.fill("[aria-label='From, Seconds']", "10")
        page.press("[aria-label='From, Seconds']", "Enter")
        assert page.inner_text(count) == "90 of 1000 studies"
        page.fill("[data-part=filter]", "sub-0950")
        assert page.inner_text(count) == "1 of 1000 studies"
        page.focus("tbody td.name span")
        page.keyboard.press("3")
        name_reader(page, "anna")
        page.wait_for_selector("tbody .badge.bad:not(.waiting)")
        page.fill("[data-part=filter]", "truncated")
        page.fill("[aria-label='From, Seconds']", "")
        page.press("[aria-label='From, Seconds']", "Enter")
        assert page.inner_text(count) == "10 of 1000 studies"
        assert page.locator("[data-shape]").count() == 0  # without previews
        page.fill("[data-part=filter]", "nothing like it")
        assert page.inner_text("[data-part=list]") == "No study matches the filter."
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.slow
@needs_chromium
def test_a_thousand_studies_are_judged_from_the_keyboard(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for number in range(1000):
        scan(results / f"sub-{number:04}.nii", shape=(4, 5, 6))
    with viewed(results) as (url, _), opened_page() as page:
        page.goto(url)

        def current() -> str:
            return page.evaluate("document.activeElement.textContent")

        page.keyboard.press("ArrowDown")
        assert current() == "sub-0000.nii"
        page.keyboard.press("PageDown")
        page.keyboard.press("ArrowDown")
        assert current() == "sub-0011.nii"
        page.keyboard.press("3")
        page.wait_for_selector("tr:has-text('sub-0011') .badge.bad")
        page.keyboard.press("End")
        assert current() == "sub-0999.nii"
        page.keyboard.press("Enter")
        ready(page)
        assert current() == "sub-0999.nii"  # the heading of the viewer
        page.keyboard.press("ArrowLeft")
        wait_until(page, "document.querySelector('#viewer h2').textContent === 'sub-0998.nii'")
        page.keyboard.press("1")
        wait_for_announcement(page, "sub-0998.nii is marked good")
        page.keyboard.press("Escape")
        page.wait_for_selector("tr:has-text('sub-0998') .badge.good")
        assert current() == "sub-0998.nii"
        page.keyboard.press("?")
        assert page.is_visible("#batch dialog")
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        page.keyboard.type("sub-0011")
        assert page.inner_text("[data-part=count]") == "1 of 1000 studies"
    assert stored_marks(results) == {"sub-0011.nii": "bad", "sub-0998.nii": "good"}


def voxel(page: "Page") -> list[int]:
    """The voxel that the position names."""
    place = page.inner_text("[data-part=place]").partition("voxel ")[2]
    return [int(index) for index in place.split(", ")]


def middle_of(page: "Page", area: str) -> tuple[float, float]:
    box = page.locator(area).first.bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


AXIAL = "figure[data-role=input] [data-plane=axial]"


@pytest.mark.slow
@needs_chromium
def test_zoom_pan_ruler_and_position_are_those_of_the_patient(pairs: tuple[Path, Path]) -> None:
    with viewed(*pairs) as (url, _), opened_page() as page:
        page.goto(f"{url}#0")
        ready(page)
        # The affine of the scans has ones on its diagonal: voxel (20, 24, 16) of 40 x 48 x 32.
        assert page.inner_text("[data-part=place]").startswith("R 19.0  A 23.0  S 15.0 mm")
        x, y = middle_of(page, AXIAL)
        page.mouse.move(x, y)
        around = voxel(page)
        assert abs(around[0] - 20) <= 1
        page.keyboard.down("Control")
        page.mouse.wheel(0, -400)
        page.keyboard.up("Control")
        ready(page)
        assert page.evaluate("viewer.state.zoom") > 3
        page.mouse.move(x + 1, y)
        assert np.abs(np.subtract(voxel(page), around)).max() <= 1  # it stays under the pointer
        sizes = page.evaluate(
            "[...document.querySelectorAll('[data-plane=axial] .frame')].map((e) => e.offsetWidth)"
        )
        assert len(set(sizes)) == 1  # all images alike
        page.mouse.down(button="middle")
        page.mouse.move(x + 60, y)
        page.mouse.up(button="middle")
        page.mouse.move(x, y)
        assert voxel(page)[0] < around[0]
        page.keyboard.press("f")
        ready(page)
        page.keyboard.press("d")
        for _ in range(4):
            page.keyboard.press("Shift+ArrowRight")
        for _ in range(3):
            page.keyboard.press("Shift+ArrowDown")
        page.keyboard.press("d")
        ready(page)
        assert page.inner_text(f"{AXIAL} em") == "5.0 mm"
        page.keyboard.press("l")
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x, y + 30)
        page.mouse.up()
        ready(page)
        assert page.evaluate("viewer.state.cursor[2]") == 16 + 5
        assert page.locator(f"{AXIAL} em").is_hidden()  # of another slice
        page.locator("[data-part=slice]").fill("3")
        wait_until(page, "viewer.state.cursor[2] === 2")


@pytest.mark.slow
@needs_chromium
def test_windows_by_name_are_those_of_the_program(pairs: tuple[Path, Path]) -> None:
    head = np.full(SHAPE, -1000, np.int16)
    head[10:30, 10:38, 8:24] = 40
    head[17:24, 21:28] = 60
    files = [folder / "anna_ct.nii.gz" for folder in pairs]
    for file in files:
        stored(file, head)
    with viewed(*files) as (url, _), opened_page() as page:
        page.goto(f"{url}#0")
        ready(page)
        assert page.inner_text("output[data-role=input]") == "60 HU"
        before = levels(page, "result")
        page.select_option("[aria-label='Window of Input']", "Brain")
        ready(page)
        assert set(np.unique(levels(page, "input"))) == {0, 128, 191}  # of 0 to 80 HU
        assert np.array_equal(levels(page, "result"), before)
        page.check("[data-part=together]")
        page.select_option("[aria-label='Window of Result']", "Lung")
        ready(page)
        assert page.input_value("[aria-label='White of Input']") == "150"
        assert page.input_value("[aria-label='Window of Input']") == "Lung"


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("width", [820, 1280, 1920])
def test_nothing_is_beyond_the_edge(pairs: tuple[Path, Path], width: int) -> None:
    """Images, tools and marks; on a tablet images are below each other, and two fingers zoom."""
    with viewed(*pairs) as (url, _), opened_page(width, 1180) as page:
        page.goto(f"{url}#0")
        ready(page)
        outside = page.evaluate(
            """() => [...document.querySelectorAll("#viewer *")].filter((one) => {
              const box = one.getBoundingClientRect();
              const isOut = box.width && (box.left < 0 || box.right > innerWidth);
              return isOut && !one.closest(".plane");
            }).map((one) => one.outerHTML.slice(0, 80))"""
        )
        assert outside == []
        tops = page.evaluate(
            "[...document.querySelectorAll('.columns figure')].map((e) => e.offsetTop)"
        )
        assert len(set(tops)) == (3 if width == 820 else 1)
        for button in ("[data-mark=good]", "[data-mark=bad]", "[data-tool=ruler]"):
            box = page.locator(button).bounding_box()
            assert box
            assert box["y"] + box["height"] <= 1180
        x, y = middle_of(page, AXIAL)
        touch = page.context.new_cdp_session(page)

        def fingers(kind: str, apart: float) -> None:
            points = [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}]
            given = points if kind != "touchEnd" else []
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": given})

        fingers("touchStart", 20)
        for apart in (30, 40, 60):
            fingers("touchMove", apart)
        fingers("touchEnd", 0)
        wait_until(page, "viewer.state.zoom > 1.8")


@pytest.mark.slow
@needs_chromium
def test_a_blind_reading_shows_numbers_and_stores_names(pairs: tuple[Path, Path]) -> None:
    with viewed(*pairs, "--random-order", 7, reader="dora") as (url, _), opened_page() as page:
        page.goto(url)
        for name in (*STUDIES, str(pairs[1])):
            assert name not in page.content()
        assert page.title() == "Blind reading, random order 7"
        assert page.locator("td.name").all_inner_texts() == ["Study 1", "Study 2", "Study 3"]
        page.keyboard.press("u")
        page.keyboard.press("1")
        wait_for_announcement(page, "Study 1 is marked good")
        page.keyboard.press("u")
        assert page.evaluate("document.activeElement.textContent") == "Study 2"
    assert list(stored_marks(pairs[1]).values()) == ["good"]


@pytest.mark.slow
@needs_chromium
def test_studies_are_filtered_by_kind(tmp_path: Path) -> None:
    world = World(tmp_path)
    scan(world.inputs / "a.nii.gz")
    (world.inputs / "bad.nii.gz").write_bytes(b"\x1f\x8bjunk")
    world.translate()
    with viewed(world.output) as (url, _), opened_page() as page:
        page.goto(url)
        options = page.locator("[data-part=kind] option").all_inner_texts()
        assert "failed (1)" in options
        assert all("limit" not in option for option in options)
        page.select_option("[data-part=kind]", "failed")
        assert page.locator("td.name a").all_inner_texts() == ["bad.nii.gz"]
