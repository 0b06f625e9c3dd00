"""Pages on which a reader looks at studies and marks them: on the local server, and from a disk."""

import json
import os
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ...io.volume import NOTICE
from ...pipelines.report.measure_rules import RULES, MeasureRule
from ...pipelines.report.previews import thumbnail
from ...pipelines.report.report import StudyReport
from ...pipelines.report.suspicion import Suspicion, suspicions
from ...pipelines.view.review import COLUMNS, Reviews, verdict
from ...pipelines.view.studies import ViewedStudy, Viewing
from .documents import rendered
from .progress_lines import failure_text
from .text import counted, date_and_minute, flagged, printable

if TYPE_CHECKING:
    from markupsafe import Markup

_LIST = ("review.js", "marks.js", "studies.js")
_VIEWER = (*_LIST, "viewer.js", "tools.js")
_STYLES = ("report.css", "review.css")


MEASURES = (
    *(rule for rule in RULES if rule.is_listed),
    MeasureRule(
        "note_count",
        "number of notes on the study",
        name="notes",
        figure=lambda row: len(row.notes) or None,
    ),
    MeasureRule(
        "seconds",
        "time spent on the study",
        figure=lambda row: row.seconds if row.is_done else None,
    ),
)
"""Columns and histograms of pages, shown if any study has the measure."""

MEASURES_OF_WORK = (
    MeasureRule(
        "rate",
        "voxels of the scan per second",
        name="voxels/s",
        figure=lambda row: row.voxels_per_second,
    ),
    MeasureRule(
        "peak",
        "peak memory while the study was in flight",
        figure=lambda row: row.peak_memory and row.peak_memory.bytes / 2**20,
        unit=" MiB",
    ),
)


def _column(measure: MeasureRule) -> dict[str, Any]:
    """Return a column's heading; low: whether low values come first when a list is sorted by it."""
    unit = f",{measure.unit}" if measure.unit else ""
    title, words = (text[:1].upper() + text[1:] for text in (measure.title, measure.help))
    return {"key": measure.key, "title": f"{title}{unit}", "help": words, "low": measure.low}


def view_page(viewing: Viewing, reviews: Reviews) -> Callable[[str], str]:
    """Return a function that renders the server's page with a nonce, and the marks as they are."""

    readers = {review.reader for review in reviews.values()}

    def page(nonce: str) -> str:
        def marks(study: ViewedStudy) -> dict[str, Any]:
            review = reviews[study.folder]
            return verdict(review.own(study.name), review.others(study.name))

        data = {**study_data(viewing.studies, marks), **_about(viewing, "server")}
        if viewing.is_blind:
            for number, study in enumerate(data["studies"]):
                study["name"] = f"Study {number + 1}"
                study.pop("id", None)
        [data["reader"]] = readers
        return review_page("review.html.j2", data, nonce, **_words(viewing))

    return page


def export_page(viewing: Viewing, reviews: Reviews) -> str:
    """Return the page that shows studies from files beside it.

    reviews: whose marks the page shows to its readers.
    """

    def marks(study: ViewedStudy) -> dict[str, Any]:
        found = reviews[study.folder].marks if reviews else ()
        return verdict(None, (mark for mark in found if mark.study == study.name))

    data = {**study_data(viewing.studies, marks), **_about(viewing, "file")}
    return review_page(
        "review.html.j2", data, pictures=stored_pictures(viewing.studies), **_words(viewing)
    )


def _about(viewing: Viewing, mode: str) -> dict[str, Any]:
    return {
        "mode": mode,
        "opens": True,
        "title": printable(viewing.title),
        "started": viewing.stored.batch.started if viewing.stored else "",
    }


def _words(viewing: Viewing) -> dict[str, Any]:
    return {
        "title": printable(viewing.title),
        "subtitle": _subtitle(viewing),
        "failures": failure_groups(study.row for study in viewing.studies if study.row),
    }


def review_page(
    template: str,
    data: dict[str, Any],
    nonce: str = "",
    pictures: "Markup | str" = "",
    filters: Mapping[str, Callable[..., Any]] | None = None,
    **words: object,
) -> str:
    """Render a page with lists of studies, and with the viewer if the data say that it opens.

    nonce: of scripts and styles; without one, the page names their hashes. pictures: those of the
    studies, as `stored_pictures` returns them. filters: of the template. words: its other values.
    """
    from markupsafe import Markup

    scripts = source(_VIEWER if data["opens"] else _LIST)
    styles = source(_STYLES)
    return rendered(
        template,
        dict(filters or {}),
        data=as_json({"reader": "", **data, "columns": COLUMNS}),
        pictures=pictures,
        scripts=scripts,
        styles=styles,
        nonce=Markup(' nonce="{}"').format(nonce) if nonce else "",
        policy="" if nonce else hashed_policy(scripts, styles),
        opens=data["opens"],
        is_file=data["mode"] == "file",
        has_pictures=data["hasPictures"],
        count=len(data["studies"]),
        notice=NOTICE,
        **words,
    )


def stored_pictures(studies: Sequence[ViewedStudy]) -> "Markup":
    """Return the previews of all studies in small, by number, as JSON."""
    found: dict[int, str] = {}
    for number, study in enumerate(studies):
        if study.preview and (picture := thumbnail(study.preview)):
            found[number] = b64encode(picture).decode()
    return as_json(found)


def _subtitle(viewing: Viewing) -> str:
    parts = [counted(len(viewing.studies), "study", "studies")]
    if viewing.stored:
        batch = viewing.stored.batch
        parts = [batch.model.name, date_and_minute(batch.started), *parts]
    return f"{', '.join(parts)}. {NOTICE}"


def _unmarked(_: ViewedStudy) -> dict[str, Any]:
    return verdict(None, ())


def study_data(
    studies: Sequence[ViewedStudy],
    marks: Callable[[ViewedStudy], dict[str, Any]] = _unmarked,
    beside: Path | None = None,
) -> dict[str, Any]:
    """Return the studies and their measures as the scripts of a page take them.

    marks: returns those on a study, as `verdict`. beside: folder of a page about a batch, from
    which it links to previews.
    """
    judged = _judged(studies)
    measures = [
        measure
        for measure in (*MEASURES, *MEASURES_OF_WORK)[: None if beside else len(MEASURES)]
        if any(study.row and measure.of(study.row) is not None for study in studies)
    ]
    folders = {study.folder for study in studies}
    top = os.path.commonpath(folders) if len(folders) > 1 else None
    places = "\n".join(f"{study.folder}/{study.name}" for study in studies)
    return {
        "key": sha256(places.encode(errors="surrogatepass")).hexdigest()[:16],
        "measures": [*map(_column, measures)],
        "hasPictures": any(study.preview for study in studies),
        "studies": [
            {
                **_study(number, study, measures, judged.get(number, _NOT_JUDGED)),
                **_names(study, top, beside),
                **{key: value for key, value in marks(study).items() if value or key in _ALWAYS},
            }
            for number, study in enumerate(studies)
        ],
    }


_ALWAYS = ("mark", "comment")
"""Fields of a verdict that a page has even if they are empty."""


def _names(study: ViewedStudy, top: str | None, beside: Path | None) -> dict[str, str]:
    """Return how a page shows a study, under which other name it stores a mark, and its preview."""
    stored = os.path.relpath(study.folder / study.name, top) if top else study.name
    shown = printable(study.name if beside else stored)
    names = {"name": shown} if shown == stored else {"name": shown, "id": stored}
    return {**names, "file": _link(study.preview, beside)} if study.preview and beside else names


def _link(file: Path, beside: Path) -> str:
    """Return a relative address, which no browser takes for another scheme."""
    return f"./{quote(os.fsencode(os.path.relpath(file, beside)))}"


_NOT_JUDGED = Suspicion("not judged")


def _judged(studies: Sequence[ViewedStudy]) -> dict[int, Suspicion]:
    """Return the judgement of each study with a row, by its place."""
    places = [at for at, study in enumerate(studies) if study.row]
    rows = [study.row for study in studies if study.row]
    found = suspicions(rows, [studies[at].origin for at in places])
    return dict(zip(places, found, strict=True))


def _study(
    number: int, study: ViewedStudy, measures: Sequence[MeasureRule], found: Suspicion
) -> dict[str, Any]:
    row = study.row
    notes = [*filter(None, [found.note]), *(row.notes if row else ())]
    return {
        "number": number,
        "roles": list(study.images),
        "picture": study.preview is not None,
        "status": row.status if row else "",
        "reason": printable(flagged(_reason(row))) if row and row.failure else "",
        "notes": [printable(flagged(note)) for note in notes],
        "flagged": [finding.key for finding in found.findings],
        "state": found.state if row and row.is_done else "",
        "far": min(found.far, _FARTHEST),
        **{one.key: one.of(row) if row else None for one in measures},
    }


_FARTHEST = 1e9
"""Distance that a page has for results without measures, which are infinitely far."""


def failure_groups(rows: Iterable[StudyReport]) -> "Markup":
    """Return the failures among rows, grouped by cause, the most frequent first."""
    from markupsafe import Markup

    failures = [row for row in rows if row.status == "failed"]
    groups = grouped_failures(failures)
    return Markup(rendered("failures.html.j2", {}, groups=groups, count=len(failures)))


def grouped_failures(rows: Iterable[StudyReport]) -> list[tuple[str, list[StudyReport]]]:
    """Group failed rows by their reason without the study's own paths."""
    groups: dict[str, list[StudyReport]] = {}
    for row in rows:
        groups.setdefault(_reason(row), []).append(row)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def _reason(row: StudyReport) -> str:
    """Return the reason of a failure without the study's own paths."""
    reason = failure_text(row.failure)
    for own in (str(row.source), str(row.output), row.name, row.source.name):
        reason = reason.replace(own, "…")
    return reason


def source(names: Iterable[str]) -> "Markup":
    """Return scripts or styles of the package, one after the other."""
    from markupsafe import Markup

    folder = resources.files(__package__ or "") / "templates"
    return Markup("\n").join(Markup((folder / name).read_text("utf-8")) for name in names)


def as_json(values: object) -> "Markup":
    """Return JSON that no parser of HTML ends early."""
    from markupsafe import Markup

    text = json.dumps(values, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def hashed_policy(scripts: str, styles: str) -> "Markup":
    """Return the policy of a page on a disk: its own scripts, and what these load beside it."""
    from markupsafe import Markup

    script, style = map(_hash, (scripts, styles))
    return Markup(
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        f"script-src 'sha256-{script}' 'strict-dynamic'; style-src 'sha256-{style}'; "
        "img-src data:; base-uri 'none'; form-action 'none'\">"
    )


def _hash(text: str) -> str:
    return b64encode(sha256(text.encode()).digest()).decode()
