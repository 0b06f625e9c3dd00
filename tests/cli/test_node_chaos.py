"""A short version of the benchmark that ends node, workers and a PACS while series pass."""

from pathlib import Path

from benchmarks.node_chaos import Trial, run


def test_kills_and_a_restart_of_the_pacs_lose_and_double_nothing(tmp_path: Path) -> None:
    found = run(tmp_path, Trial(series=8, kills=3, restarts=1, judged=2))
    assert found["derived series"] == 8
    assert sum(found["kills"].values()) == 3
    for nothing in (
        "studies without one",
        "studies with several",
        "derived series of another length",
        "with errors",
        "unfinished files",
    ):
        assert found[nothing] == 0, nothing
    assert found["judged by dciodvfy"] == 2
