"""The report command: text, the page, hostile names, and what it refuses."""

import re
from base64 import b64decode, b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.pages import json_in
from support.reports import BATCH, failed, row, written
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.cli.render.text import printable
from cuda_cyclegan.io.volume import Volume
from cuda_cyclegan.pipelines.report.previews import thumbnail
from cuda_cyclegan.pipelines.report.report import BatchReport, Skip, StudyReport, Use
from cuda_cyclegan.pipelines.stopwatch import Stage
from cuda_cyclegan.pipelines.study.figures import Verified
from cuda_cyclegan.pipelines.study.geometry import mid_slices
from cuda_cyclegan.pipelines.study.preview import Column, Shades
from cuda_cyclegan.pipelines.study.preview import drawn as preview_of
from cuda_cyclegan.pipelines.study.statistics import Range

HOSTILE = "\"><script>alert('1')</script><img src=x onerror=alert(1)>\x1b[31m\u202e&lt;\udcff"


def report(*words: object) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, words)])


class Page(HTMLParser):
    """The elements of a page, and all text in it."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.source = file.read_text("utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


def page_of(tmp_path: Path, *reports: BatchReport) -> Page:
    stored = [written(one, tmp_path / f"{index}.json") for index, one in enumerate(reports)]
    result = report(*stored, "--html", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    return Page(tmp_path / "page.html")


def test_one_report_shows_stages_throughput_memory_and_failures_last(tmp_path: Path) -> None:
    batch = replace(BATCH, studies=(failed("bad.nii", "It is empty."), *BATCH.studies))
    result = report(written(batch, tmp_path / "r.json"))
    assert result.exit_code == 0
    assert re.search(r"infer +5\.00 s +50\.0%  █{15}$", result.stdout, re.MULTILINE)
    assert re.search(r"wall time +10\.0 +200 +300 MiB", result.stdout)
    assert "The network was computing for 50 % of the batch's 10.0 s\n" in result.stdout
    assert result.stdout.splitlines()[-1] == "failed: bad.nii: unreadable: It is empty."


@pytest.mark.parametrize(
    ("wall", "computing", "stage", "is_said"),
    [
        (60, 30, "copy", True),
        (59, 30, "copy", False),
        (60, 30, "blend", False),
        (60, 40, "copy", False),
    ],
    ids=["long", "short", "no GPU", "busy"],
)
def test_a_long_batch_on_a_gpu_that_waited_names_two_processes(
    tmp_path: Path, wall: float, computing: float, stage: Stage, is_said: bool
) -> None:
    [first, *_] = BATCH.studies
    rows = (replace(first, stages={**first.stages, stage: 1.0}),)
    use = Use(wall, busy=wall, computing=computing, devices=1)
    shown = report(written(replace(BATCH, studies=rows, use=use), tmp_path / "r.json")).stdout
    assert ("--device cuda:0,0" in shown) == is_said


def test_studies_that_overlap_in_time_are_shown_so(tmp_path: Path) -> None:
    first = replace(row("a.nii", 4.0), when={"read": (0.0, 1.0), "infer": (1.0, 6.0)})
    second = replace(row("b.nii", 6.0), when={"read": (1.0, 2.0), "infer": (6.0, 10.0)})
    batch = replace(BATCH, studies=(second, first, failed("bad.nii", "It is empty.")))
    shown = report(written(batch, tmp_path / "r.json")).stdout.splitlines()
    start = next(at for at, line in enumerate(shown) if line.endswith("in progress"))
    assert shown[start + 2].split() == ["a.nii", "0.00", "6.00", "█" * 18]
    assert shown[start + 3].split() == ["b.nii", "1.00", "10.0", "█" * 3 + "·" * 12 + "█" * 12]
    page = page_of(tmp_path, batch)
    titles = re.findall(r"<title>(.*?)</title>", page.source)
    assert "infer: from 6.00 to 10.0 s" in titles
    assert "a.nii: 250" in titles, "the plots over time take the same moments"


def test_reports_of_old_versions_have_no_moments_and_are_shown(tmp_path: Path) -> None:
    assert "in progress" not in report(written(BATCH, tmp_path / "r.json")).stdout
    assert "in progress" not in page_of(tmp_path, BATCH).words


def test_two_reports_are_compared_by_wall_time_and_conditions_first(tmp_path: Path) -> None:
    faster = replace(
        BATCH, studies=(row("a.nii", 2.0), row("b.nii", 3.0)), device="better", seconds=8.0
    )
    files = [written(BATCH, tmp_path / "1.json"), written(faster, tmp_path / "2.json")]
    lines = report(*files).stdout.splitlines()
    reported = lines[lines.index("2.json against 1.json:") + 1 :]
    assert reported[:3] == [
        "Wall time: 10.0 s, then 8.00 s for the same 2 studies; the second was 1.25x as fast",
        "The conditions differed:",
        "- device: numpy became better",
    ]
    assert any(re.fullmatch(r"a\.nii +4\.00 +2\.00 +2\.00", line) for line in reported)
    assert any(re.fullmatch(r"sum +10\.0 +5\.00 +2\.00", line) for line in reported)
    page = page_of(tmp_path, BATCH, faster)
    assert page.words.index("Wall time: 10.0 s") < page.words.index("Work by stage")


def test_other_studies_have_no_speedup_and_times_too_short_no_quotient(tmp_path: Path) -> None:
    one = replace(BATCH, studies=(row("a.nii", 4.0), row("only.nii", 6.0)))
    two = replace(BATCH, studies=(replace(row("a.nii", 0.0001)),), seconds=2.0)
    shown = report(written(one, tmp_path / "1.json"), written(two, tmp_path / "2.json")).stdout
    assert "Wall time: 10.0 s, then 2.00 s, but not for the same studies" in shown
    assert "x as fast" not in shown
    assert "1 study translated only in the first" in shown
    assert re.search(r"a\.nii +4\.00 +0\.00$", shown, re.MULTILINE)


def test_reports_without_anything_in_common_are_no_error(tmp_path: Path) -> None:
    empty = replace(BATCH, studies=())
    files = [written(empty, tmp_path / "1.json"), written(BATCH, tmp_path / "2.json")]
    assert "No study was translated in both batches" in report(*files).stdout
    assert "No study was translated in both batches" in page_of(tmp_path, empty, BATCH).words


@pytest.mark.parametrize("content", ["", "{}", "[1]"])
def test_a_foreign_file_is_refused_in_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    result = report(tmp_path / "x.json")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert "translate --report" in result.stderr


def test_the_page_loads_nothing_and_runs_its_own_scripts_alone(tmp_path: Path) -> None:
    page = page_of(tmp_path, BATCH, BATCH)
    assert {tag for tag, _ in page.elements}.isdisjoint({"iframe", "object", "img"})
    attributes = [pair for _, attributes in page.elements for pair in attributes.items()]
    assert [value for name, value in attributes if name in ("src", "href")] == ["data:,"]
    assert not [name for name, _ in attributes if name == "style" or name.startswith("on")]
    assert "https:" not in page.source
    assert set(re.findall('http:[^"]*', page.source)) == {"http://www.w3.org/2000/svg"}
    [policy] = [
        value for name, value in attributes if name == "content" and "default" in str(value)
    ]
    scripts = re.findall(r"<script>(.*?)</script>", page.source, re.DOTALL)
    hashes = [b64encode(sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(hashes) == 1
    assert f"script-src 'sha256-{hashes[0]}' 'strict-dynamic'" in policy
    assert "unsafe" not in policy


def test_hostile_names_stay_text_everywhere(tmp_path: Path) -> None:
    batch = replace(
        BATCH,
        model=replace(BATCH.model, name=HOSTILE),
        device=HOSTILE,
        started=HOSTILE,
        output=Path(HOSTILE),
        studies=(row(HOSTILE, 1.0), failed(HOSTILE, HOSTILE)),
        skipped=(Skip(Path(HOSTILE), HOSTILE),),
    )
    mixed = replace(BATCH, studies=(row("a", 1.0), failed("b", "c")), skipped=(Skip(Path(), ""),))
    plain = page_of(tmp_path, mixed, mixed)
    first, second = (written(batch, tmp_path / name) for name in ("hostile.json", "twice.json"))
    assert report(first, second, "--html", tmp_path / "hostile.html").exit_code == 0
    page = Page(tmp_path / "hostile.html")
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in plain.elements}
    assert "<script>alert('1')</script>" in page.words
    assert "&lt;" in page.words
    assert json_in(page.source)["studies"][0]["name"] == printable(HOSTILE)
    assert not set("\x1b\u202e") & set(page.source)
    shown = report(first).stdout
    assert not set("\x1b\u202e") & set(shown)


def test_settings_in_reasons_are_shown_as_options(tmp_path: Path) -> None:
    """Reports of this version and of earlier ones spell them differently."""
    batch = replace(
        BATCH,
        studies=(
            failed("now.nii", "it is occupied; move it away or use setting overwrite"),
            failed("before.nii", "it holds 3 volumes; choose one with --volume N"),
        ),
        skipped=(Skip(Path("slices"), "it has 3 slices; lower setting min-slices"),),
    )
    stored = written(batch, tmp_path / "r.json")
    assert "--overwrite" not in stored.read_text()
    shown = " ".join(report(stored).stdout.split())
    assert "move it away or use --overwrite" in shown
    assert "choose one with --volume N" in shown
    page = " ".join(page_of(tmp_path, batch).words.split())
    assert "move it away or use --overwrite" in page
    assert "it has 3 slices; lower --min-slices" in page


def test_previews_are_embedded_small_when_they_are_there(tmp_path: Path) -> None:
    names = ("there", "gone", "other", "cut", "huge", "relative")
    there, gone, other, cut, huge, relative = (
        replace(row(f"{name}.nii", 1.0), preview=tmp_path / f"{name}.nii.preview.png")
        for name in names
    )
    drawn(tmp_path / "there.nii.preview.png", (1044, 1054))
    drawn(tmp_path / "relative.nii.preview.png", (60, 40))
    drawn(tmp_path / "huge.nii.preview.png", (5000, 10))
    (tmp_path / "other.nii.preview.png").write_bytes(b"root:x:0:0")
    whole = (tmp_path / "there.nii.preview.png").read_bytes()
    (tmp_path / "cut.nii.preview.png").write_bytes(whole[:500])
    relative = replace(relative, preview=Path("relative.nii.preview.png"))
    foreign = replace(row("foreign.nii", 1.0), preview=tmp_path / "private.png")
    drawn(tmp_path / "private.png", (60, 40))
    rows = (there, gone, other, cut, huge, relative, foreign)
    page = page_of(tmp_path, replace(BATCH, studies=rows))
    pictures = json_in(page.source, "pictures")
    names = [study["name"] for study in json_in(page.source)["studies"]]
    sizes = {
        names[int(number)]: Image.open(BytesIO(b64decode(content))).size
        for number, content in pictures.items()
    }
    assert sizes == {"there.nii": (420, 424), "relative.nii": (60, 40)}


def test_a_preview_holds_its_own_small_picture(tmp_path: Path) -> None:
    """The large one need not be decoded for it."""
    volume = Volume(np.zeros((30, 20, 10), np.int16), np.eye(4), None, "nifti")
    planes = mid_slices(volume)
    column = Column("x", [plane.values for plane in planes], Shades(Range(0, 1)))
    file = tmp_path / "a.preview.png"
    file.write_bytes(preview_of(planes, [column] * 5))
    picture = Image.open(BytesIO(thumbnail(file) or b""))
    with Image.open(file) as whole:
        assert picture.size == (420, round(420 * 248 / (whole.width * 3 / 5)))


def drawn(file: Path, size: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3)).astype(np.uint8)
    Image.fromarray(noise).save(file)


def test_failures_come_first_and_long_tables_are_closed(tmp_path: Path) -> None:
    many = tuple(row(f"{number}.nii", 1.0) for number in range(150))
    page = page_of(tmp_path, replace(BATCH, studies=(*many, failed("bad.nii", "It is empty."))))
    assert page.words.index("1 failure") < page.words.index("Work by stage")
    assert len(json_in(page.source)["studies"]) == 151


def test_failures_are_grouped_by_cause_without_the_paths_of_studies(tmp_path: Path) -> None:
    alike = [failed(f"{n}.nii", f"scans/{n}.nii is truncated; copy it again.") for n in range(30)]
    other = failed("x.nii", "scans/x.nii may not be read; ask for permission.")
    page = page_of(tmp_path, replace(BATCH, studies=(other, *alike)))
    summaries = re.findall(r"<summary><strong>(\d+)</strong> (.*?)</summary>", page.source)
    assert summaries == [
        ("30", "unreadable: … is truncated; copy it again."),
        ("1", "unreadable: … may not be read; ask for permission."),
    ]
    assert all(f"<li>{n}.nii</li>" in page.source for n in range(30))


def test_a_folder_of_results_has_the_report_that_is_kept_with_it(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / ".results.cuda-cyclegan").mkdir()
    assert report(tmp_path / "results").exit_code == 2
    written(BATCH, tmp_path / ".results.cuda-cyclegan" / "report.json")
    assert "T1 to T2" in report(tmp_path / "results").stdout


def kept(folder: Path, batch: BatchReport) -> Path:
    """A folder of results with the report that is kept with it."""
    folder.mkdir(parents=True)
    record = folder.parent / f".{folder.name}.cuda-cyclegan"
    record.mkdir(exist_ok=True)
    written(batch, record / "report.json")
    return folder


@pytest.mark.parametrize(
    ("folders", "first", "second"),
    [
        (("before", "after"), "before", "after"),
        (("one/results", "two/results"), "one/results", "two/results"),
        (("one/results", "two/one/results"), "tmp/one/results", "two/one/results"),
    ],
)
def test_two_folders_of_results_are_told_apart_by_their_paths(
    tmp_path: Path, folders: tuple[str, str], first: str, second: str
) -> None:
    (tmp_path / "tmp").mkdir()
    bad = replace(BATCH, studies=(*BATCH.studies, failed("bad.nii", "It is empty.")))
    both = zip(folders, (BATCH, bad), strict=True)
    stored = [kept(tmp_path / "tmp" / folder, batch) for folder, batch in both]
    lines = report(*stored).stdout.splitlines()
    assert f"{second} against {first}:" in lines
    assert [line.partition(":")[0] for line in lines if "T1 to T2 on" in line] == [first, second]
    assert lines[-1].startswith(f"{second}: failed: bad.nii: ")
    page = tmp_path / "page.html"
    assert report(*stored, "--html", page).exit_code == 0
    assert f"<h1>{second} against {first}</h1>" in page.read_text("utf-8")


def test_verification_is_a_condition_of_a_comparison(tmp_path: Path) -> None:
    checked = [replace(row, verified=Verified(3, 4, 0.0, 1e-3, 1.0)) for row in BATCH.studies]
    verified = replace(BATCH, studies=tuple(checked))
    files = [written(BATCH, tmp_path / "1.json"), written(verified, tmp_path / "2.json")]
    lines = report(*files).stdout.splitlines()
    assert "- extras: none became verification of 3 patches" in lines


def test_a_page_never_replaces_a_file_unasked_nor_a_report_at_all(tmp_path: Path) -> None:
    stored, page = written(BATCH, tmp_path / "r.json"), tmp_path / "page.html"
    page.write_text("mine")
    assert report(stored, "--html", page).exit_code == 2
    assert page.read_text() == "mine"
    assert report(stored, "--html", stored, "--force").exit_code == 2
    occupied = report(stored, "--html", page)
    assert (occupied.exit_code, "--output" in occupied.stderr) == (2, False)
    assert report(stored, "--html", page, "--force").exit_code == 0
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("rows", [(), (row("a", 0.0),), (failed("a", "b"),)])
def test_batches_with_nothing_to_plot_have_a_page(
    tmp_path: Path, rows: tuple[StudyReport, ...]
) -> None:
    page = page_of(tmp_path, replace(BATCH, studies=rows, seconds=0.0))
    assert "T1 to T2" in page.words
