"""Draw architecture.svg: the packages, by layer, and which layer imports which.

    PYTHONPATH=tests python docs/figures/architecture.py [FOLDER]

Packages and imports are those of the table in tests/test_layout.py, which the tests compare with
the code. Nothing here names a package.
"""

import sys
from pathlib import Path

from test_layout import MAY_IMPORT

HERE = Path(__file__).parent
ROWS = (("cli",), ("pipelines",), ("engine", "io"))
WIDTH, PAD, GAP, LINE, BOX = 920, 14, 32, 24, 7.2
STYLE = """\
text { font: 13px ui-monospace, monospace; fill: #24292f }
.title { font: 600 15px system-ui, sans-serif }
.layer { fill: #f6f8fa; stroke: #8c959f }
.unit { fill: #ffffff; stroke: #d0d7de }
.arrow { stroke: #57606a; fill: none; marker-end: url(#head) }
.head { fill: #57606a }"""


def drawing() -> str:
    """Return the picture as SVG."""
    parts: list[str] = []
    places: dict[str, tuple[float, float, float, float]] = {}
    top = float(PAD)
    for row in ROWS:
        width = (WIDTH - PAD * (len(row) + 1)) / len(row)
        heights: list[float] = []
        for at, layer in enumerate(row):
            left = PAD + at * (width + PAD)
            units, height = packed(layer, left, top, width)
            places[layer] = left, top, width, height
            heights.append(height)
            parts += units
        top += max(heights) + GAP
    boxes = [
        f'<rect class="layer" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="6"/>'
        for x, y, w, h in places.values()
    ]
    arrows = [arrow(places[one], places[other]) for one, other in edges()]
    head = (
        '<marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path class="head" d="M0 0L8 4L0 8z"/></marker>'
    )
    size = f"0 0 {WIDTH} {top - GAP + PAD:g}"
    label = "Layers of the program: cli imports pipelines, which imports engine and io"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="img">',
            f"<title>{label}</title><style>{STYLE}</style><defs>{head}</defs>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *(boxes + parts + arrows),
            "</svg>\n",
        ]
    )


def packed(layer: str, left: float, top: float, width: float) -> tuple[list[str], float]:
    """Return the packages of a layer in lines of boxes, and the layer's height."""
    names = [unit.removeprefix(f"{layer}.") for unit in MAY_IMPORT if unit.startswith(f"{layer}.")]
    parts = [f'<text class="title" x="{left + PAD:g}" y="{top + 24:g}">{layer}</text>']
    x, y = left + PAD, top + 38
    for name in names:
        w = len(name) * 7.9 + 2 * BOX
        if x + w > left + width - PAD:
            x, y = left + PAD, y + LINE + 6
        parts.append(
            f'<rect class="unit" x="{x:g}" y="{y:g}" width="{w:g}" height="{LINE}" rx="4"/>'
            f'<text x="{x + BOX:g}" y="{y + 16:g}">{name}</text>'
        )
        x += w + 6
    return parts, y + LINE + PAD - top


def edges() -> list[tuple[str, str]]:
    """Return pairs of layers in one row or adjacent ones; the first imports the second."""
    pairs = {
        (unit.partition(".")[0], other.partition(".")[0])
        for unit, allowed in MAY_IMPORT.items()
        for other in allowed.split()
    }
    return sorted(
        (one, other) for one, other in pairs if one != other and depth(other) - depth(one) < 2
    )


def depth(layer: str) -> int:
    """Return the row of a layer, from 0 at the top."""
    return next(at for at, row in enumerate(ROWS) if layer in row)


def arrow(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> str:
    """Return an arrow between two layers, below or next to each other."""
    if one[1] == other[1]:
        path = f"M{one[0] + one[2]:g} {one[1] + 20:g}H{other[0]:g}"
    else:
        path = f"M{other[0] + other[2] / 2:g} {one[1] + one[3]:g}V{other[1]:g}"
    return f'<path class="arrow" d="{path}"/>'


def main() -> None:
    folder = Path(sys.argv[1]) if sys.argv[1:] else HERE
    (folder / "architecture.svg").write_text(drawing(), "utf-8")


if __name__ == "__main__":
    main()
