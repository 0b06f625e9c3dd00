"""Time of U-Nets on one GPU by step: microseconds and megabytes of each.

    PYTHONPATH=tests python tests/benchmarks/unet_steps.py [--output FILE.json]

U-Nets of 5 levels at 128^3 in fp16, batch 1 and 4. A step's time is that of 20 runs by itself, one
behind the other in a graph; bytes are the least that it can move.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np
from support.gpu_networks import random_network

from cuda_cyclegan.engine.benchmark.layer_times import work_of
from cuda_cyclegan.engine.compiler.steps import Step, is_planned
from cuda_cyclegan.engine.cuda.patches.patch_generator import (
    CudaGenerator,
    CudaOptions,
    open_cuda_generator,
)
from cuda_cyclegan.engine.network.architectures import UNetSpec, build

RESULT = Path(__file__).parent / "results" / "unet_steps.json"
PATCH = (128, 128, 128)
CASES = ((32, 1), (64, 1), (32, 4), (64, 4))
RUNS, ROUNDS = 100, 5


@dataclass(frozen=True, slots=True)
class StepTime:
    """plan: of cuDNN, of a convolution."""

    step: str
    microseconds: float
    megabytes: float
    plan: str | None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=RESULT)
    output = parser.parse_args().output
    record = {"date": datetime.now(UTC).date().isoformat(), "networks": []}
    for width, batch in CASES:
        network = random_network(build(UNetSpec(1, 1, width, 5)), 0)
        with open_cuda_generator(network, CudaOptions(), PATCH, batch) as generator:
            record["device"] = generator.device
            patches = np.random.default_rng(1).uniform(-1, 1, (batch, 1, *PATCH))
            generator(patches.astype(np.float32))
            milliseconds = 1e3 * median(generator.times(RUNS))
            steps = [timed(generator, *one) for one in generator.step_times(ROUNDS)]
        record["networks"].append(
            {"width": width, "batch": batch, "milliseconds": milliseconds, "steps": steps}
        )
        print(f"ngf {width}, batch {batch}: {milliseconds:.3f} ms", flush=True)
        output.write_text(json.dumps(record, indent=1) + "\n")


def timed(generator: CudaGenerator, step: Step, microseconds: float) -> dict[str, object]:
    plan = generator.tactic(step.shape) if is_planned(step) else None
    work = work_of(step)
    return asdict(StepTime(work.text, round(microseconds, 2), round(work.bytes / 1e6, 2), plan))


if __name__ == "__main__":
    main()
