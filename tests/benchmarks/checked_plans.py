"""Plans of cuDNN tried, refused and kept on a card, and what the check takes of a first start.

    PYTHONPATH=tests python tests/benchmarks/checked_plans.py [--every-plan] [--result FILE.json]

A ResNet of 9 blocks and a U-Net of 7 levels, both of width 32, at 128^3: those plans that are fast
are checked by a run on each set of numbers, or every plan that runs at all; and the ones that are
used by 128 more. Also how close right plans come to the bound of rounding.
"""

import argparse
import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from support.gpu_networks import random_network

from cuda_cyclegan.engine.cuda import generator as generators
from cuda_cyclegan.engine.cuda import nvrtc, plan_bench, plan_check, plan_search
from cuda_cyclegan.engine.cuda.cudnn import cudnn
from cuda_cyclegan.engine.cuda.generator import CudaOptions, open_cuda_generator
from cuda_cyclegan.engine.cuda.plan_cache import Candidate
from cuda_cyclegan.engine.cuda.plan_search import SearchSettings
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.options import Precision
from cuda_cyclegan.engine.probe.cards import cuda_devices
from cuda_cyclegan.engine.probe.cudnn_copies import dotted

RESULT = Path(__file__).parent / "results" / "checked_plans.json"
NETWORKS = {"ResNet": ResNetSpec(1, 1, 32, 9), "U-Net": UNetSpec(1, 1, 32, 7)}
PRECISIONS: tuple[Precision, ...] = ("fp16", "bf16", "tf32", "fp32")
PATCH = (128, 128, 128)


class Watch:
    """Seconds in a method, and what it gave each time."""

    def __init__(self, owner: Any, name: str) -> None:
        self.seconds, self.given = 0.0, list[Any]()
        inner = getattr(owner, name)

        def timed(*given: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            self.given.append(inner(*given, **named))
            self.seconds += time.perf_counter() - begin
            return self.given[-1]

        setattr(owner, name, timed)

    def forget(self) -> None:
        self.seconds, self.given = 0.0, []


def by_time(candidates: list[Candidate]) -> tuple[Candidate, ...]:
    """All that were tried, where the search would go on with the fast ones."""
    return tuple(sorted(candidates, key=lambda one: one.microseconds))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--every-plan", action="store_true")
    asked = parser.parse_args()
    if asked.every_plan:
        plan_search.worth_keeping = by_time
    timed = Watch(plan_bench.PlanBench, "time")
    verdicts = Watch(plan_check.PlanCheck, "verdicts")
    steady = Watch(plan_check.PlanCheck, "unsteady")
    expected = Watch(plan_check.PlanCheck, "_expected")
    layers = Watch(generators, "check_outer_layers")
    cache = Path(tempfile.mkdtemp())
    for precision in PRECISIONS:
        for path in nvrtc.FOLDER.glob("*.cu"):
            nvrtc.compiled(path.stem, precision, cuda_devices()[0].capability, cache)
    watches = timed, verdicts, steady, expected, layers
    rows: list[dict[str, Any]] = []
    for name, spec in NETWORKS.items():
        network = random_network(build(spec), 0)
        for precision in asked.precisions.split(","):
            for watch in watches:
                watch.forget()
            told: list[str] = []
            search = SearchSettings(
                "full", 60, lambda what, share, told=told: share is None and told.append(what)
            )
            begin = time.perf_counter()
            options = CudaOptions(PATCH, None, precision, cache=cache, search=search)
            for known in cache.glob("plans-*.json"):
                known.unlink()
            with open_cuda_generator(network, options) as opened:
                whole = time.perf_counter() - begin
                batch = opened.batch
            checking = sum(watch.seconds for watch in watches[1:])
            judged = [one for given in verdicts.given for one in given]
            right = [one.error for one in judged if one.wrong is None]
            rows.append(
                {
                    "network": name,
                    "precision": precision,
                    "batch": batch,
                    "convolutions": len(expected.given),
                    "tried": len(timed.given),
                    "checked": len(judged),
                    "refused": told,
                    "used": len(steady.given),
                    "largest error in bounds": round(max(right, default=0.0), 4),
                    "first opening, s": round(whole, 2),
                    "of it checking, s": round(checking, 2),
                    "verdicts": round(verdicts.seconds, 3),
                    "many runs": round(steady.seconds, 3),
                    "plain results": round(expected.seconds, 3),
                    "outer layers": round(layers.seconds, 3),
                    "ratio": round(whole / (whole - checking), 3),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    [card, *_] = cuda_devices()
    content = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "card": card.name,
        "driver": card.driver,
        "cudnn": dotted(cudnn.backend_version()),
        "rows": rows,
    }
    asked.result.write_text(json.dumps(content, indent=1) + "\n")


main()
