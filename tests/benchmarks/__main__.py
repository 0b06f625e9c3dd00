"""List, remake and date the figures of docs/benchmarks.md and of the other pages.

    cd tests
    python -m benchmarks                    # list the benchmarks, and what each one needs
    python -m benchmarks --all              # run those that this machine can run
    python -m benchmarks network_times      # run these
    python -m benchmarks --ages             # write results/README.md: figures older than their code

Each benchmark is a script with options of its own, run here with those of the published figures.
Run it on an idle machine. The exit status is 1 if a benchmark failed; the others still run.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results"
AGES = RESULTS / "README.md"

Needs: TypeAlias = Literal["CPU", "GPU", "2 GPUs", "other"]

BATCHES = ("cli/commands", "engine", "io", "pipelines/run", "pipelines/study", "pipelines/results")
PATCHES = ("engine/compiler", "engine/cuda", "engine/network")
CPU = ("engine/cpu", "engine/network")
CHECKS = (*CPU, "pipelines/calibration.py", "pipelines/cycle.py", "pipelines/study")
FILES = ("io/files", "io/formats", "io/reading.py", "io/writing.py")
QUEUE = ("pipelines/jobs",)
NODE = ("pipelines/node", "pipelines/jobs", "io/dicom_network")
START = ("cli", "engine/startup.py", "engine/cuda", "engine/probe", "pipelines/translate.py")
ROWS = RESULTS / "whole_volume_rows.json"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Published figures, and the script that measures them.

    script: name of a script in this folder; "" if it was removed after the measurement.
    results: files in results/. code: files and folders whose speed is measured. needs: "other"
    for benchmarks that need `what` besides a machine, which --all therefore leaves out.
    arguments: those of the published figures.
    """

    script: str
    results: tuple[str, ...]
    code: tuple[str, ...]
    needs: Needs = "CPU"
    what: str = ""
    arguments: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """Words that run the script with the interpreter."""
        return (f"tests/benchmarks/{self.script}.py", *self.arguments)


BENCHMARKS = (
    Benchmark("network_times", ("network_times.json",), PATCHES, "GPU"),
    Benchmark("engine_against_pytorch", ("engine_against_pytorch.json",), PATCHES, "GPU"),
    Benchmark("unet_steps", ("unet_steps.json",), PATCHES, "GPU"),
    Benchmark(
        "imported_networks",
        ("imported_networks.json",),
        (*PATCHES, "engine/importing"),
        "GPU",
    ),
    Benchmark(
        "networks_of_others",
        ("networks_of_others.json",),
        ("engine/importing", "engine/cpu", "pipelines/model_import"),
        "other",
        what="clones of the repositories that networks_of_others.json lists",
    ),
    Benchmark(
        "networks_of_others",
        ("networks_of_others_gpu.json",),
        (*PATCHES, "engine/importing"),
        "other",
        what="a GPU, and models kept by `--keep`",
    ),
    Benchmark(
        "networks_beside_pytorch",
        ("networks_beside_pytorch.json",),
        (*PATCHES, "engine/importing"),
        "other",
        what="a GPU, and clones of the repositories that networks_of_others.json lists",
    ),
    Benchmark(
        "networks_on_cpu",
        ("networks_on_cpu.json",),
        (*CPU, "engine/importing"),
        "other",
        what="clones of the repositories that networks_of_others.json lists",
    ),
    Benchmark("form_losses", ("form_losses.json",), PATCHES, "GPU"),
    Benchmark("batch_sizes", ("batch_sizes.json",), PATCHES, "GPU"),
    Benchmark("checked_plans", ("checked_plans.json",), PATCHES, "GPU"),
    Benchmark(
        "checked_plans",
        ("checked_plans_every.json",),
        PATCHES,
        "GPU",
        arguments=(
            "--every-plan",
            "--result",
            "tests/benchmarks/results/checked_plans_every.json",
        ),
    ),
    Benchmark(
        "whole_volume",
        ("whole_volume.json", ROWS.name),
        (*PATCHES, "engine/whole_volume.py"),
        "GPU",
        arguments=("--torch", "--to", str(ROWS.relative_to(ROOT))),
    ),
    Benchmark("huge_volume", ("huge_volume.json",), BATCHES, "GPU"),
    Benchmark("batch_on_a_card", ("batch_on_a_card.json",), BATCHES, "GPU"),
    Benchmark("batch_cost", ("batch_cost.json",), BATCHES, "GPU"),
    Benchmark("batch_against_monai", ("batch_against_monai.json",), BATCHES, "GPU"),
    Benchmark("planned_seconds", ("planned_seconds.json",), ("pipelines/rates.py",), "GPU"),
    Benchmark("first_scan", ("first_scan.json",), START, "GPU"),
    Benchmark("start_time", ("start_time.json",), START, "GPU"),
    Benchmark("start_timeline", ("start_timeline.json",), START, "2 GPUs"),
    Benchmark("cards_scaling", ("cards_scaling.json",), BATCHES, "2 GPUs"),
    Benchmark("peer_copies", ("peer_copies.json",), (), "2 GPUs"),
    Benchmark("soak_on_a_card", ("soak_on_a_card.json",), BATCHES, "GPU"),
    Benchmark("checks_cost", ("checks_cost.json",), CHECKS, "GPU", arguments=("cpu", "cuda")),
    Benchmark("cpu_against_rivals", ("cpu_against_rivals.json",), CPU),
    Benchmark("cpu_cores", ("cpu_cores.json",), (*CPU, "pipelines/study/inference.py")),
    Benchmark("cpu_exactness", ("cpu_exactness.json",), CPU),
    Benchmark("batch_overlap", ("batch_overlap.json",), ("pipelines/run",)),
    Benchmark(
        "soak_on_a_card",
        ("soak_on_the_cpu.json",),
        ("engine/cpu", "pipelines/run"),
        arguments=(
            *("--device", "cpu", "--shape", "48x48x40", "--patch", "32x32x32"),
            *("--width", "4", "--blocks", "1"),
            *("--output", "tests/benchmarks/results/soak_on_the_cpu.json"),
        ),
    ),
    Benchmark("host_memory", ("host_memory.json",), ("io", "pipelines/study")),
    Benchmark("scan_files", ("scan_files.json",), FILES),
    Benchmark("dicom_files", ("dicom_files.json",), ("io/dicom", "io/files")),
    Benchmark("evaluation_parity", ("evaluation_parity.json",), ("pipelines/evaluation",)),
    Benchmark("checks_of_the_sample", ("checks_of_the_sample.json",), CHECKS),
    Benchmark("disagreement", ("disagreement.json",), CHECKS),
    Benchmark("unfit_scans", ("unfit_scans.json",), CHECKS),
    Benchmark(
        "unfit_scans",
        ("unfit_scans_colin.json",),
        CHECKS,
        "other",
        what="the T1 of Colin 27, as planted_results.py describes",
        arguments=("--head", "ch2.nii.gz"),
    ),
    Benchmark("spread_of_the_sample", ("spread_of_the_sample.json",), (*CPU, "pipelines/study")),
    Benchmark("queue_measures", ("queue_measures.json",), QUEUE, "other", "PostgreSQL, root"),
    Benchmark("queue_chaos", ("queue_chaos.json",), QUEUE, "other", "PostgreSQL"),
    Benchmark("dask_cost", ("dask_cost.json",), ("pipelines/dask_cluster.py", "pipelines/run")),
    Benchmark("dask_kills", ("dask_kills.json",), ("pipelines/dask_cluster.py", "pipelines/run")),
    Benchmark("simulated_month", ("simulated_month.json",), QUEUE, "other", "PostgreSQL, gcc"),
    Benchmark("queue_trials", ("queue_trials.json",), QUEUE, "other", "PostgreSQL, root, faketime"),
    Benchmark("queue_dead_host", ("queue_dead_host.json",), QUEUE, "other", "PostgreSQL, root"),
    Benchmark("queue_equal_names", ("queue_equal_names.json",), QUEUE, "other", "PostgreSQL"),
    Benchmark("node_measures", ("node_measures.json",), NODE, "other", "Orthanc"),
    Benchmark("node_chaos", ("node_chaos.json",), NODE, "other", "Orthanc, dciodvfy"),
    Benchmark(
        "node_chaos",
        ("node_chaos_server.json",),
        NODE,
        "other",
        "Orthanc, dciodvfy, PostgreSQL",
        ("--postgresql",),
    ),
    Benchmark(
        "node_chaos",
        ("node_chaos_web.json",),
        NODE,
        "other",
        "Orthanc, its DICOMweb plug-in, dciodvfy",
        ("--dicomweb", "--series", "80", "--kills", "14", "--restarts", "4"),
    ),
    Benchmark(
        "node_chaos",
        ("node_chaos_moved.json",),
        NODE,
        "other",
        "Orthanc, dciodvfy",
        ("--moved", "--series", "40", "--kills", "10"),
    ),
    Benchmark(
        "node_chaos",
        ("node_chaos_committed.json",),
        NODE,
        "other",
        "Orthanc, dciodvfy",
        ("--commitment", "--series", "40", "--kills", "10"),
    ),
    Benchmark("random_kills", ("random_kills.json",), ("pipelines/run", "pipelines/results")),
    Benchmark(
        "install_size",
        ("install_size.json",),
        ("pyproject.toml",),
        "other",
        "environments made by pip",
    ),
    Benchmark("offline_install", ("offline_install.json",), ("docs/locks",), "other", "root"),
    Benchmark(
        "container_build", ("container_build.json",), ("Containerfile",), "other", "podman, root"
    ),
    Benchmark("planted_faults", ("planted_faults.json",), ("tests",), "other", "hours"),
    Benchmark(
        "train_known_contrast",
        ("train_known_contrast.json",),
        (),
        "other",
        "public scans, a GPU",
    ),
    Benchmark(
        "volume_against_patches",
        ("volume_against_patches.json",),
        ("engine/whole_volume.py", "engine/cpu"),
        "other",
        "models of train_known_contrast",
    ),
    Benchmark(
        "volume_seams",
        ("volume_seams.json",),
        ("engine/whole_volume.py", "engine/cpu"),
        "other",
        "a model of train_known_contrast",
    ),
    Benchmark(
        "",
        ("early_launches.json",),
        ("engine/cuda/kernels",),
        "other",
        "code that was not kept",
    ),
    Benchmark("", ("fp8_convolutions.json",), (), "other", "code that was not kept"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="NAME", help="scripts to run")
    parser.add_argument("--all", action="store_true", help="run all that this machine can run")
    parser.add_argument("--ages", action="store_true", help=f"write {AGES.name} of results/")
    asked = parser.parse_args()
    if unknown := {*asked.names} - {each.script for each in BENCHMARKS}:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    if asked.ages:
        AGES.write_text("".join(f"{line}\n" for line in ages()), "utf-8")
        return 0
    if asked.all:
        return run(list(runnable()))
    if asked.names:
        return run([each for each in BENCHMARKS if each.script in asked.names])
    for each in BENCHMARKS:
        print(f"{' '.join(each.command) if each.script else each.results[0]}  [{needs(each)}]")
    return 0


def needs(each: Benchmark) -> str:
    """Return what a benchmark needs, in words."""
    return each.what or each.needs


def runnable() -> Iterator[Benchmark]:
    """Yield the benchmarks that this machine can run, and print why others are left out."""
    from cuda_cyclegan.engine.probe.gpus import cuda_devices

    gpus = len(cuda_devices())
    least = {"CPU": 0, "GPU": 1, "2 GPUs": 2}
    for each in BENCHMARKS:
        if each.needs in least and gpus >= least[each.needs]:
            yield each
        else:
            print(f"left out: {each.script or each.results[0]} (needs {needs(each)})")


def run(chosen: Sequence[Benchmark]) -> int:
    """Run benchmarks one after another. Returns 1 if one failed, else 0."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    failed: list[str] = []
    for each in chosen:
        print("$", *each.command, flush=True)
        done = subprocess.run([sys.executable, *each.command], cwd=ROOT, env=environment)
        if done.returncode:
            failed.append(each.script)
    for name in failed:
        print(f"failed: {name}")
    return 1 if failed else 0


def ages() -> Iterator[str]:
    """Yield the lines of the page on the age of results."""
    yield "# Age of the results"
    yield ""
    yield "When each file was last measured, by Git, and how many commits since then touched the"
    yield "code that it measures. A figure with commits may still be right: run its script to know."
    yield "Written by `python -m benchmarks --ages`; `python -m benchmarks` lists the scripts."
    yield ""
    yield "| result | script | measured | commits since | last of them |"
    yield "| --- | --- | --- | --- | --- |"
    for each in BENCHMARKS:
        for name in each.results:
            if (RESULTS / name).exists():
                script = f"`{each.script}.py`" if each.script else "removed"
                yield f"| {name} | {script} | {' | '.join(age(RESULTS / name, each.code))} |"


def age(result: Path, code: Sequence[str]) -> tuple[str, str, str]:
    """Return the day of a result, the number of commits to its code since, and their last day."""
    measured, day = git("log", "-1", "--format=%H %cs", "--", str(result)).split()
    later = ["log", "--format=%cs", f"{measured}..HEAD", "--", *code]
    days = git(*later).split() if code else []
    return day, str(len(days) or "none"), days[0] if days else ""


def git(*words: str) -> str:
    """Return what a command of Git prints about this repository."""
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
