"""Agreement of readers, in lines."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from ...pipelines.view.agreement import Agreement, Estimate, Reader, agreements, unlike
from ...pipelines.view.review import GRADES
from .tables import Row, TextTable
from .text import counted, percent, printable


def agreement_lines(readers: Sequence[Reader]) -> Iterator[str]:
    """Return what each reader marked, how far they agree, and the studies with different marks."""
    if not readers:
        yield "No study is marked."
        return
    yield from TextTable(
        Row("reader", [*GRADES, "marked"]),
        [Row(printable(one.name), _counts(one)) for one in readers],
    ).lines(None)
    for found in agreements(readers):
        yield from _agreement(found)
    for study, marks in unlike(readers).items():
        listed = ", ".join(f"{grade} by {printable(name)}" for name, grade in marks.items())
        yield f"- {printable(study)}: {listed}"


def _counts(reader: Reader) -> list[str]:
    counts = Counter(reader.grades.values())
    return [*(str(counts[grade]) for grade in GRADES), str(len(reader.grades))]


def _agreement(found: Agreement) -> Iterator[str]:
    names = ", ".join(map(printable, found.readers[:-1])) + f" and {printable(found.readers[-1])}"
    if not found.studies:
        yield f"{names}: no study is marked by all of them"
        return
    studies = counted(found.studies, "study", "studies")
    share = f"{percent(found.share.value or 0)}{_interval(found.share, percent)}"
    yield f"{names}: {studies} marked by all, {found.alike} alike ({share})"
    title = "Cohen's" if len(found.readers) == 2 else "Fleiss'"
    if found.kappa.value is None:
        yield f"{title} kappa: not defined, as only one mark was used"
    else:
        yield f"{title} kappa: {found.kappa.value:.2f}{_interval(found.kappa, '{:.2f}'.format)}"


def _interval(found: Estimate, shown: Callable[[float], str]) -> str:
    if found.interval is None:
        return ""
    low, high = map(shown, found.interval)
    return f", 95 % interval {low} to {high}"
