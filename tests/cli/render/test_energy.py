"""Energy of a batch in its table and totals."""

from dataclasses import replace

from support.reports import BATCH

from cuda_cyclegan.cli.render.batch_summary import table, totals
from cuda_cyclegan.engine.probe.gpus import Energy

MEASURED = replace(BATCH, energy=Energy(joules=2500.0, seconds=10.0))


def test_each_study_has_its_part_and_the_batch_what_was_measured() -> None:
    head, *lines = table(MEASURED, None)
    end = head.index("~J") + len("~J")
    shown = {line.split()[0]: line[:end].split()[-1] for line in lines if " " in line}
    assert shown == {"a.nii": "1.00k", "b.nii": "1.50k", "wall": "2.50k"}


def test_totals_show_joules_watts_and_that_parts_are_not_measured() -> None:
    reported = list(totals(MEASURED))
    assert "Energy 2.50 kJ, 250 W on average" in reported
    assert "~J: share of that energy in proportion to the time in the network." in reported


def test_nothing_is_reported_where_nothing_was_counted() -> None:
    reported = "\n".join((*table(BATCH, None), *totals(BATCH)))
    assert "~J" not in reported
    assert "Energy" not in reported
