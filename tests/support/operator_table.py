"""The table of operators of docs/onnx.md, made of ONNX's cases and what the program does with them.

    PYTHONPATH=tests python -m support.operator_table    # writes it

Of the onnx version that the page names; another has other cases.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
from support.onnx_node_cases import Verdict, judged, node_cases

PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"
START = "<!-- operators: python -m support.operator_table -->"
END = "<!-- end of operators -->"

_SUBJECT = re.compile(r"Operator (\w+) \(node '[^']*'\) ")
_MOST_VALUES = 4
_UNSUPPORTED = "is not supported", "is of the domain"
_CONSTANTS = " of constants"


def table(verdicts: Iterable[Verdict]) -> str:
    """The table between the marks of the page."""
    by_operator: defaultdict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.status in ("equal", "refused"):
            by_operator[verdict.case.operator].append(verdict)
    rows: list[str] = []
    never: list[str] = []
    for operator, found in sorted(by_operator.items()):
        equal = [one for one in found if one.status == "equal"]
        reasons = sorted(
            {_reason(one, operator) for one in found if one.status == "refused"} - {""}
        )
        if not equal and all(reason.startswith(_UNSUPPORTED) for reason in reasons):
            never.append(operator)
            continue
        folded = sum(_CONSTANTS in one.case.name for one in equal)
        counts = (str(count or "") for count in (len(equal) - folded, folded))
        cells = operator, _attributes(equal), *counts, "; ".join(reasons)
        rows.append(f"| {' | '.join(cells)} |")
    count = sum(map(len, by_operator.values()))
    equal = sum(one.status == "equal" for found in by_operator.values() for one in found)
    head = (
        f"Made with onnx {onnx.__version__}: {count} networks, of which {equal} are computed as "
        f"ONNX's reference in double precision and ONNX Runtime do, and {count - equal} are "
        "rejected."
    )
    return "\n".join(
        (
            START,
            "",
            head,
            "",
            "| operator | attributes | tensors | constants | rejected |",
            "| --- | --- | --- | --- | --- |",
            *rows,
            "",
            f"Not supported in any form: {', '.join(never)}.",
            "",
            END,
        )
    )


def _reason(verdict: Verdict, operator: str) -> str:
    """The refusal without names and numbers of the case; empty if it is another operator's."""
    text = verdict.text.rstrip(".")
    subject = _SUBJECT.match(text)
    if subject and subject[1] != operator:
        return ""
    text = text.removeprefix(subject[0] if subject else "")
    text = re.split(r"; |, (?:as|which|but|so|next to) ", text)[0]
    return re.sub(r"[\[(]?\d[\w.,+x \]-]*\b", "N ", text).replace("  ", " ").strip()


def _attributes(verdicts: Iterable[Verdict]) -> str:
    values: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for verdict in verdicts:
        for name, text in _texts(verdict.case.attributes):
            values[name][text] = None
    return "; ".join(f"{name} {_some(list(one))}" for name, one in sorted(values.items()))


def _texts(attributes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in attributes.items():
        match value:
            case bytes():
                yield name, value.decode()
            case int() | str():
                yield name, str(value)
            case float():
                yield name, f"{value:.3g}"
            case list():
                yield name, f"of {len(value)}"
            case _:
                yield name, "a tensor"


def _some(values: list[str]) -> str:
    more = ", ..." if len(values) > _MOST_VALUES else ""
    return ", ".join(values[:_MOST_VALUES]) + more


def of_all() -> str:
    """The table as the program makes it now."""
    with TemporaryDirectory() as folder:
        return table(judged(case, Path(folder)) for case in node_cases())


def on_page(page: str) -> str:
    """The table that a page has."""
    return page[page.index(START) : page.index(END) + len(END)]


def main() -> None:
    """Write the table into the page."""
    page = PAGE.read_text("utf-8")
    PAGE.write_text(page.replace(on_page(page), of_all()), "utf-8")


if __name__ == "__main__":
    main()
