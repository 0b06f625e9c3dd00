"""Draw loss.csv, the mean losses of every 50 iterations, as loss.png.

usage: python loss_curve.py [FOLDER], where loss.csv lies.
"""

import csv
import sys
from pathlib import Path

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
PANELS = {
    "Generators: adversarial": ("G_A", "G_B"),
    "Discriminators": ("D_A", "D_B"),
    "Cycle (weight 10)": ("cycle_A", "cycle_B"),
}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    with (folder / "loss.csv").open() as file:
        rows = list(csv.DictReader(file))
    iterations = [int(row["iteration"]) for row in rows]
    figure, panels = plt.subplots(1, 3, figsize=(10, 3), sharex=True, layout="constrained")
    for panel, (title, losses) in zip(panels.flat, PANELS.items(), strict=True):
        for loss in (name for name in losses if name in rows[0]):
            panel.plot(iterations, [float(row[loss]) for row in rows], label=loss, linewidth=1)
        panel.set(title=title, ylim=(0, None))
        panel.set_xlabel("iteration")
        panel.legend()
    figure.savefig(folder / "loss.png", dpi=80)


if __name__ == "__main__":
    main()
