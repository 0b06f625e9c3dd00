"""The list of benchmarks: it names every result, every script of the pages, and existing code."""

import json
import re
from collections import Counter
from pathlib import Path

from benchmarks.__main__ import AGES, BENCHMARKS, HERE, RESULTS, ROWS

ROOT = Path(__file__).parents[1]


def test_every_result_belongs_to_one_benchmark() -> None:
    listed = Counter(name for each in BENCHMARKS for name in each.results)
    stored = {path.name for path in RESULTS.glob("*.json")}
    unmeasured = {ROWS.name}
    assert stored - unmeasured == listed.keys() - unmeasured
    assert set(listed.values()) == {1}


def test_every_script_that_a_page_names_is_listed() -> None:
    pages = (ROOT / "docs" / name for name in ("benchmarks.md", "benchmarks-host.md"))
    page = "\n".join(each.read_text("utf-8") for each in pages)
    named = set(re.findall(r"`(\w+)\.py`", page))
    assert named
    assert named - {each.script for each in BENCHMARKS} == set()


def test_every_script_and_all_measured_code_exists() -> None:
    scripts = [HERE / f"{each.script}.py" for each in BENCHMARKS if each.script]
    code = [ROOT / name for each in BENCHMARKS for name in each.code]
    assert [path for path in (*scripts, *code) if not path.exists()] == []


def test_the_page_on_ages_lists_every_result() -> None:
    rows = re.findall(r"^\| (\w+\.json) ", AGES.read_text("utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(path.name for path in RESULTS.glob("*.json"))


def test_each_fault_can_be_planted_at_one_place() -> None:
    counts = {
        fault["name"]: (ROOT / fault["file"]).read_text("utf-8").count(fault["before"])
        for fault in json.loads((HERE / "planted_faults.json").read_text("utf-8"))
    }
    assert {name: count for name, count in counts.items() if count != 1} == {}
