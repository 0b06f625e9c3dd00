"""Many studies with the same report share a line."""

from cuda_cyclegan.cli.render.text import alike_lines


def test_up_to_three_have_a_line_each_and_more_share_one() -> None:
    reported = [(name, "torn") for name in "abc"] + [("x", "wet")]
    reported += [(name, "lost") for name in "defg"]
    assert list(alike_lines("note", reported)) == [
        *("note: a: torn", "note: b: torn", "note: c: torn", "note: x: wet"),
        "note: 4 studies, d to g: lost",
    ]


def test_reports_in_between_do_not_part_them() -> None:
    reported = [(name, words) for name in "abcd" for words in ("torn", "wet")]
    assert list(alike_lines("failed", reported, "files")) == [
        "failed: 4 files, a to d: torn",
        "failed: 4 files, a to d: wet",
    ]
