"""Text in pages stays text, on one line."""

from xml.etree.ElementTree import tostring

from cuda_cyclegan.cli.render.html.markup import document, element


def test_text_of_names_becomes_no_markup_and_no_control_character() -> None:
    name = "<b>a\n\x1b[31m\udcff.nii"
    cell = element("td", name, element("i", "x"), name, title=name)
    for page in (tostring(cell, "unicode"), document(name, element("p", name))):
        assert "<b>" not in page
        assert "\x1b" not in page
        assert "\udcff" not in page
    assert cell.text == cell[0].tail == cell.get("title")
    assert "\n" not in (cell.text or "")
