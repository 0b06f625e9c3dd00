"""Plans of cuDNN tried, refused and kept on a card, and what the check takes of a first start.

    PYTHONPATH=tests python tests/benchmarks/checked_plans.py [--every-plan] [--result FILE.json]

A ResNet of 9 blocks and U-Nets of 5 and 7 levels, all of width 32, at 128^3: those plans that
would be used are checked, as ever, by a run on each set of numbers and many more; or every plan
that runs at all, too, by the former. Also how close right plans come to the bound of rounding.
Rows of a result that is there already stay, but for those that are measured anew.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from support.gpu_networks import random_network

from cuda_cyclegan.engine.compiler.kernels.table import KERNELS
from cuda_cyclegan.engine.compiler.steps import ConvShape
from cuda_cyclegan.engine.cuda import nvrtc
from cuda_cyclegan.engine.cuda.cudnn import cudnn
from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
from cuda_cyclegan.engine.cuda.patches.patch_generator import open_cuda_generator
from cuda_cyclegan.engine.cuda.tuning.bench import TrialBench
from cuda_cyclegan.engine.cuda.tuning.cache import Candidate, key_of
from cuda_cyclegan.engine.cuda.tuning.convolution_check import ConvolutionCheck
from cuda_cyclegan.engine.cuda.tuning.tactics import built
from cuda_cyclegan.engine.cuda.tuning.tuner import Tuner
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.options import Precision, SearchSettings
from cuda_cyclegan.engine.probe.cuda_packages import dotted
from cuda_cyclegan.engine.probe.gpus import cuda_devices

RESULT = Path(__file__).parent / "results" / "checked_plans.json"
EVERY = RESULT.with_stem("checked_plans_every")
NETWORKS = {
    "ResNet": ResNetSpec(1, 1, 32, 9),
    "U-Net of 5 levels": UNetSpec(1, 1, 32, 5),
    "U-Net of 7 levels": UNetSpec(1, 1, 32, 7),
}
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


def check_every_plan() -> None:
    """Have each plan that runs be checked as soon as it was timed."""
    timed = Tuner._timed_plan

    def checked(tuner: Tuner, trial: Any, index: int, best: float) -> Candidate | None:
        candidate = timed(tuner, trial, index, best)
        if candidate is not None:
            tactic = built(trial.plans, index, trial.workspace)
            assert tactic is not None
            tuner._passes(trial, tactic)
        return candidate

    Tuner._timed_plan = checked


def compile_all(precisions: list[Precision], cache: Path) -> None:
    """Own kernels, which an installation compiles once, so that no row has them in its time."""
    capability = cuda_devices()[0].capability
    with ThreadPoolExecutor() as threads:
        for precision in precisions:
            for source, spec in KERNELS.items():
                for instance in spec.instances_for(precision, capability):
                    instances = (instance,) if instance else ()
                    threads.submit(
                        nvrtc.compiled, source, precision, capability, cache, instances=instances
                    )


def kept_plans(cache: Path, shapes: Iterable[ConvShape]) -> int:
    """Return how many plans are kept of these convolutions; launches of custom kernels are in the
    same file.
    """
    [known] = cache.glob("tactics-*.json")
    findings = json.loads(known.read_text())["findings"]
    return sum(len(findings[key_of(shape)]["candidates"]) for shape in shapes)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path)
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--every-plan", action="store_true")
    asked = parser.parse_args()
    result: Path = asked.result or (EVERY if asked.every_plan else RESULT)
    precisions: list[Precision] = asked.precisions.split(",")
    if asked.every_plan:
        check_every_plan()
    timed = Watch(TrialBench, "time")
    verdicts = Watch(ConvolutionCheck, "verdict")
    steady = Watch(ConvolutionCheck, "unsteady")
    expected = Watch(ConvolutionCheck, "_expected")
    layers = Watch(Tuner, "check_layers")
    preparing = Watch(Tuner, "_prepare_next")
    cache = Path(tempfile.mkdtemp())
    compile_all(precisions, cache)
    watches = timed, preparing, verdicts, steady, expected, layers
    rows: list[dict[str, Any]] = []
    for name in asked.networks.split(","):
        network = random_network(build(NETWORKS[name]), 0)
        for precision in precisions:
            for watch in watches:
                watch.forget()
            reported: list[str] = []
            search = SearchSettings(
                "full",
                60.0,
                lambda what, share, reported=reported: share is None and reported.append(what),
            )
            begin = time.perf_counter()
            options = CudaOptions(precision, cache=cache, search=search)
            for known in cache.glob("tactics-*.json"):
                known.unlink()
            with open_cuda_generator(network, options, PATCH, None) as opened:
                whole = time.perf_counter() - begin
                batch = opened.batch
                tactics = opened._fitted.tactics
                used = [one.plans is None for one in tactics.values()]
            checking = sum(watch.seconds for watch in watches[2:]) - preparing.seconds
            right = [one.error for one in verdicts.given if one.wrong is None]
            rows.append(
                {
                    "network": name,
                    "precision": precision,
                    "batch": batch,
                    "convolutions": len(expected.given),
                    "tried": len(timed.given),
                    "checked": len(verdicts.given),
                    "refused": reported,
                    "kept": kept_plans(cache, tactics),
                    "used of cuDNN": used.count(False),
                    "used of own kernels": used.count(True),
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
            write(result, rows)


def write(result: Path, rows: list[dict[str, Any]]) -> None:
    """The rows, and those of other networks and precisions that the file had before."""
    measured = {(row["network"], row["precision"]) for row in rows}
    before = json.loads(result.read_text())["rows"] if result.exists() else []
    others = [row for row in before if (row["network"], row["precision"]) not in measured]
    [card, *_] = cuda_devices()
    content = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "card": card.name,
        "driver": card.driver,
        "cudnn": dotted(cudnn.backend_version()),
        "rows": [*others, *rows],
    }
    result.write_text(json.dumps(content, indent=1) + "\n")


main()
