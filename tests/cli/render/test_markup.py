"""Text in pages stays text, on one line."""

from dataclasses import replace
from pathlib import Path

from support.reports import BATCH, failed, row

from cuda_cyclegan.cli.render.report import page
from cuda_cyclegan.pipelines.report.codec import as_stored

NAME = "<b>a'\"\n\x1b[31m\udcff.nii"


def test_text_of_names_becomes_no_markup_and_no_control_character() -> None:
    model = replace(BATCH.model, name=NAME)
    rows = row(NAME, 1.0), failed(NAME, NAME)
    made = page(
        [as_stored(replace(BATCH, model=model, studies=rows), Path(NAME))], Path("page.html")
    )
    assert made.count("&lt;b&gt;a&#39;&#34;\\n\\x1b[31m\\udcff.nii") > 5
    for forbidden in ("<b>", "\x1b", "\udcff", "a'\"", ".nii\n"):
        assert forbidden not in made
