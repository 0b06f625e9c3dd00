"""Use of features that only POSIX systems have, and behaviour without them."""

import ast
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.batch_world import scan
from support.processes import started
from support.product_source import ROOT, product
from support.translate_world import World
from support.without_posix.posix_only import ARGUMENTS, ATTRIBUTES, MODULES

TRAINING = ROOT / "sample_data" / "training"
SAID = (
    *("--reference", TRAINING / "reference.npz", "--source", "T1", "--target", "T2-like"),
    *("--intensity-in", "percentile:0,99.9", "--intensity-out", "window:0,1000"),
    *("--axes", "RAS", "--spacing", "2,2,2", "--patch", "16,16,16"),
    *("--padding", "reflect", "--block-padding", "reflect", "--upsampling", "nearest"),
    *("--norm", "instance", "--epsilon", "1e-5", "--end", "tanh"),
)
"""Options for the checkpoint there at its import: all that a search would find by the reference."""

STAND_IN = ROOT / "tests" / "support" / "without_posix"
FOLDERS = ("/proc/", "/sys/")

PLACES = {
    "engine.cores": "os.sched_getaffinity",
    "engine.cuda.driver": "os.sysconf",
    "engine.cuda.volume.held_memory": "mmap.MAP_ANONYMOUS mmap.MAP_PRIVATE",
    "engine.cpu.openvino_support": "/proc/cpuinfo",
    "engine.probe.cuda_packages": "/proc/self/maps",
    "io.dicom.pixels.frame_codecs": (
        "fcntl os.fork os.sysconf resource signal.ITIMER_PROF signal.SIGPROF signal.setitimer "
        "/proc/self/statm"
    ),
    "io.dicom.pixels.unpacking": "start_new_session=",
    "io.files.disk": (
        "os.O_DIRECTORY os.POSIX_FADV_DONTNEED os.posix_fadvise os.posix_fallocate os.pread "
        "os.preadv /proc/self/mountinfo"
    ),
    "io.files.locks": "fcntl os.O_DIRECTORY os.O_NOFOLLOW /proc/sys/kernel/random/boot_id",
    "io.files.machine_limits": "os.sysconf resource /proc/self/cgroup /sys/fs/cgroup",
    "io.files.own_files": (
        "dir_fd= os.O_DIRECTORY os.O_NOFOLLOW os.O_NONBLOCK os.geteuid os.getuid"
    ),
    "io.files.regular": "os.O_NOCTTY os.O_NONBLOCK",
    "pipelines.doctor.queue": "/proc/self/mounts",
    "pipelines.host.memory": "resource /proc/self /proc/self/statm /proc/meminfo",
    "pipelines.host.processes": (
        "os.getpgrp os.killpg os.memfd_create os.tcgetpgrp pass_fds= signal.SIGKILL "
        "start_new_session= /proc/"
    ),
    "pipelines.host.service_manager": "socket.AF_UNIX",
    "pipelines.host.signals": "signal.ITIMER_REAL signal.SIGALRM signal.setitimer",
}
"""Each subject's one place in a layer, and what is asked for there. A new name is a decision: what
does the product do where it is absent?
"""


def asked_for(tree: ast.Module) -> Iterator[str]:
    """Return what a module uses that only POSIX systems have, anywhere in its text."""
    known: dict[str, str] = {}
    nodes = list(ast.walk(tree))
    for node in nodes:
        match node:
            case ast.Import(names):
                for each in names:
                    module = each.name.partition(".")[0]
                    known[each.asname or module] = module
                    if module in MODULES:
                        yield module
            case ast.ImportFrom(str(module), names, 0):
                if module in MODULES:
                    yield module
                for each in names:
                    if each.name in ATTRIBUTES.get(module, ()):
                        yield f"{module}.{each.name}"
            case ast.Call(_, _, keywords):
                yield from (f"{each.arg}=" for each in keywords if each.arg in ARGUMENTS)
            case ast.Constant(str(text)) if text.startswith(FOLDERS):
                yield text
            case _:
                pass
    for node in nodes:
        match node:
            case ast.Attribute(ast.Name(name), attribute):
                pass
            case ast.Call(
                ast.Name("getattr" | "hasattr"), [ast.Name(name), ast.Constant(str(attribute)), *_]
            ):
                pass
            case _:
                continue
        if attribute in ATTRIBUTES.get(known.get(name, ""), ()):
            yield f"{known[name]}.{attribute}"


def test_features_of_posix_are_used_in_one_place_a_subject() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path, tree in product().items():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if asked := set(asked_for(tree)):
            found[module] = asked
    assert found == {module: set(names.split()) for module, names in PLACES.items()}
    assert set(asked_for(ast.parse((ROOT / "__main__.py").read_text()))) == set()


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ("import fcntl", "fcntl"),
        ("def late():\n    from resource import getrusage", "resource"),
        ("import os\nos.fork()", "os.fork"),
        ("import os as system\nsystem.killpg(1, 9)", "os.killpg"),
        ("from os import O_NOFOLLOW as plain", "os.O_NOFOLLOW"),
        ("import signal\nsignal.signal(signal.SIGHUP, handle)", "signal.SIGHUP"),
        ("import os\nif hasattr(os, 'getuid'): pass", "os.getuid"),
        ("import subprocess\nsubprocess.run(command, preexec_fn=limit)", "preexec_fn="),
        ("Path('/proc/self/status').read_text()", "/proc/self/status"),
    ],
)
def test_features_of_posix_are_found(source: str, asked: str) -> None:
    assert list(asked_for(ast.parse(source))) == [asked]


def run(*words: object) -> "subprocess.CompletedProcess[str]":
    """The command where the product finds nothing that only POSIX systems have."""
    return subprocess.run(
        [sys.executable, "-m", "cuda_cyclegan", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(STAND_IN)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    scan(made.inputs / "a.nii.gz")
    return made


@pytest.mark.process
def test_scans_are_translated_without_what_only_posix_has(world: World) -> None:
    done = run("translate", *world.arguments("--device", "cpu"))
    assert done.returncode == 0, done.stderr
    assert "1 translated" in done.stdout + done.stderr


@pytest.mark.slow
def test_commands_do_their_work_without_what_only_posix_has(world: World, tmp_path: Path) -> None:
    queue = ("--queue", str(tmp_path / "queue.db"))
    checkpoint, imported = TRAINING / "latest_net_G_A.pth", tmp_path / "imported.safetensors"
    for words, reported in (
        (("model", "import", checkpoint, "--output", imported, *SAID), str(imported)),
        (("model", "verify", imported), "matches the training code"),
        (("discover", world.inputs), "Found: 1 to translate"),
        (("plan", *world.arguments("--device", "cpu")), "1 to translate"),
        (("translate", *world.arguments("--device", "cpu")), "1 translated"),
        (("translate", *world.arguments("--device", "cpu")), "1 up to date"),
        (("submit", *world.arguments(*queue)), "1"),
        (("jobs", *queue), "queued"),
        (("doctor",), "File locks"),
    ):
        done = run(*words)
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
        assert reported in done.stdout + done.stderr, f"{words}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
def test_impossible_work_is_reported_in_a_sentence(world: World, tmp_path: Path) -> None:
    scan(world.inputs / "b.nii.gz", seed=2)
    queue = ("--queue", str(tmp_path / "queue.db"))
    assert run("submit", *world.arguments(*queue)).returncode == 0
    done = run("worker", "--device", "cpu", "--until-empty", *queue)
    assert done.returncode == 2
    [reported] = done.stderr.splitlines()
    assert "Worker processes cannot be started on this system" in reported


@pytest.mark.slow
def test_one_run_at_a_time_writes_to_a_folder(world: World) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from cuda_cyclegan.pipelines.results.manifest import Manifest\n"
        "with Manifest(Path(sys.argv[1])):\n"
        "    print('open', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    words = ("translate", *world.arguments("--device", "cpu"))
    with started(
        [sys.executable, "-c", script, str(world.output)],
        env={**os.environ, "PYTHONPATH": str(STAND_IN)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout.readline() == "open\n"
        assert "Another run is writing" in run(*words).stderr
    assert run(*words).returncode == 0
