"""GPUs that are visible and usable, or why not; the early context; and energy counters."""

import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.waiting import ENOUGH

from cuda_cyclegan.engine import startup
from cuda_cyclegan.engine.probe import cuda_packages, gpus
from cuda_cyclegan.engine.probe.gpus import (
    OLDEST_CAPABILITY,
    VARIABLE,
    CudaDevice,
    Energy,
    EnergyMeter,
    visible_name,
)


@pytest.mark.parametrize(
    ("variable", "index", "name"),
    [
        (None, 0, "0"),
        (None, 7, "7"),
        ("2,5", 1, "5"),
        ("GPU-a, MIG-b", 1, "MIG-b"),
        ("2,5", 2, "-1"),
        ("", 0, ""),
        ("2,2", 1, "-1"),
    ],
)
def test_a_gpu_is_named_as_this_process_counts(
    variable: str | None, index: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable)
    assert visible_name(index) == name


PROJECT = Path(__file__).parents[3] / "pyproject.toml"
INSTALLED = {
    "cuda-bindings": "12.9.1",
    "cuda-pathfinder": "1.3.0",
    "nvidia-cudnn-frontend": "1.20.0",
    "nvidia-cudnn-cu12": "9.16.0",
    "nvidia-cuda-nvrtc-cu12": "12.8.0",
    "nvidia-cuda-runtime-cu12": "12.8.0",
}
CARD = gpus.CudaDevice(0, "NVIDIA T4", (7, 5), 16 << 30, None, "CUDA 12.8")


@pytest.fixture
def machine(monkeypatch):
    """A machine with a card on which all is well, to be spoilt by a test."""
    state = {"packages": dict(INSTALLED), "newest": 12080, "cards": [CARD], "gone": set()}
    monkeypatch.setattr(gpus, "_driver", lambda: (None, state["newest"]))
    monkeypatch.setattr(cuda_packages, "_is_importable", lambda name: name not in state["gone"])
    monkeypatch.setattr(cuda_packages, "_version", lambda name: state["packages"].get(name))
    monkeypatch.setattr(gpus, "_devices", lambda *_: state["cards"])
    return state


@pytest.mark.usefixtures("machine")
def test_nothing_is_missing_on_a_machine_with_everything():
    assert gpus.why_no_cuda() is None
    assert gpus.cuda_devices() == (CARD,)


def test_cuda_13_has_packages_without_a_suffix(machine):
    machine["newest"] = 13000
    machine["packages"] = {
        "cuda-bindings": "13.0.1",
        "nvidia-cudnn-cu13": "9.16.0",
        "nvidia-cuda-nvrtc": "13.0.48",
        "nvidia-cuda-runtime": "13.0.48",
    }
    assert gpus.why_no_cuda() is None


def test_the_compiler_is_that_of_the_bindings(machine):
    asked = cuda_packages.nvrtc_package.__wrapped__  # which is asked once in a process
    machine["packages"]["nvidia-cuda-nvrtc"] = "13.0.48"
    assert asked() == "nvidia-cuda-nvrtc-cu12 12.8.0"
    machine["packages"]["cuda-bindings"] = "13.0.1"
    assert asked() == "nvidia-cuda-nvrtc 13.0.48"


ALL = [
    ("nvidia-cudnn-cu12", "cuDNN for CUDA 12", "9.16"),
    ("nvidia-cuda-nvrtc-cu12", "NVRTC for CUDA 12", "12.6"),
    ("nvidia-cuda-runtime-cu12", "headers for CUDA 12", "12.6"),
]


@pytest.mark.parametrize(("package", "name", "needed"), ALL)
def test_a_missing_library_is_named_with_what_needs_it(machine, package, name, needed):
    del machine["packages"][package]
    reason = gpus.why_no_cuda()
    assert name in reason
    assert f"{package} {needed} or newer" in reason
    assert "cuda-bindings 12.9.1 needs" in reason
    assert 'install "cuda-cyclegan[cuda12]"' in reason


@pytest.mark.parametrize(
    ("package", "other"),
    [
        ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
        ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc"),
        ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime"),
    ],
)
def test_a_library_for_the_other_cuda_is_no_substitute_and_is_reported(machine, package, other):
    del machine["packages"][package]
    machine["packages"][other] = "13.0.48"
    reason = gpus.why_no_cuda()
    assert f"{package} " in reason
    assert f"only {other} 13.0.48" in reason


@pytest.mark.parametrize(
    ("package", "found", "needed"),
    [
        ("nvidia-cudnn-cu12", "9.1.0.70", "at least 9.16 and less than 10"),
        ("nvidia-cudnn-cu12", "8.9.7.29", "at least 9.16 and less than 10"),
        ("nvidia-cudnn-cu12", "10.0.1", "at least 9.16 and less than 10"),
        ("nvidia-cuda-nvrtc-cu12", "12.1.105", "at least 12.6 and less than 13"),
        ("cuda-bindings", "12.6.2", "at least 12.8 and less than 13"),
        ("cuda-pathfinder", "1.2.3", "at least 1.3 and less than 2"),
        ("nvidia-cudnn-frontend", "1.19.1", "at least 1.20 and less than 1.27"),
        ("nvidia-cudnn-frontend", "1.27.0", "at least 1.20 and less than 1.27"),
        ("nvidia-cudnn-frontend", "1.32.1", "at least 1.20 and less than 1.27"),
    ],
)
def test_a_version_that_does_not_fit_is_reported_with_those_that_do(
    machine, package, found, needed
):
    machine["packages"][package] = found
    reason = gpus.why_no_cuda()
    assert f"{package} {found} is installed, but {needed} is needed" in reason


@pytest.mark.parametrize("major", [12, 13])
def test_the_extras_ask_for_what_is_needed(major):
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    needed = {
        **{
            library.packages[major]: library.versions[major] for library in cuda_packages._LIBRARIES
        },
        **cuda_packages._OF_BOTH,
        "cuda-bindings": cuda_packages._BINDINGS[major],
    }
    for package, (oldest, _) in needed.items():
        least = f"{package}>={'.'.join(map(str, oldest))}"
        assert any(stated.split(",")[0] == least for stated in extras[f"cuda{major}"]), least


@pytest.mark.parametrize("version", ["9.16.0", "9.16", "9.19.0.56"])
def test_versions_within_the_bounds_fit(machine, version):
    machine["packages"]["nvidia-cudnn-cu12"] = version
    assert gpus.why_no_cuda() is None


def test_a_missing_package_is_named_with_the_extra_for_the_driver(machine):
    machine["gone"].add("cudnn")
    assert gpus.why_no_cuda() == (
        'the package nvidia-cudnn-frontend is not installed: install "cuda-cyclegan[cuda12]"'
    )
    machine["newest"] = 13000
    assert "cuda-cyclegan[cuda13]" in gpus.why_no_cuda()


def test_a_driver_older_than_the_packages_is_reported_with_both_versions(machine):
    machine["packages"]["cuda-bindings"] = "13.0.1"
    reason = gpus.why_no_cuda()
    assert "supports CUDA 12.8" in reason
    assert "cuda-bindings 13.0.1 needs CUDA 13" in reason
    assert 'update the driver or install "cuda-cyclegan[cuda12]"' in reason


def test_a_driver_too_old_for_all_packages_can_only_be_updated(machine):
    machine["newest"] = 11040
    reason = gpus.why_no_cuda()
    assert "supports CUDA 11.4" in reason
    assert "cuda-bindings 12.9.1 needs CUDA 12" in reason
    assert reason.endswith("update the driver")


def test_bindings_of_an_unknown_cuda_are_reported(machine):
    machine["packages"]["cuda-bindings"] = "14.0.0"
    assert "cuda-bindings 14.0.0 is installed, but 12 or 13" in gpus.why_no_cuda()


class TestTheDriver:
    class Library:
        def __init__(self, status: int) -> None:
            self._status = status

        def cuInit(self, _flags: int) -> int:  # noqa: N802
            return self._status

    def reported(self, monkeypatch, library) -> str:
        def load(name: str):
            if library is None:
                raise OSError(f"{name}: cannot open shared object file: No such file or directory")
            return library

        monkeypatch.setattr(gpus.ctypes, "CDLL", load)
        assert gpus.cuda_devices() == ()
        return gpus.why_no_cuda()

    def test_none(self, monkeypatch):
        assert "no NVIDIA driver is installed (libcuda.so.1" in self.reported(monkeypatch, None)

    @pytest.mark.parametrize(
        ("status", "words"),
        [
            (100, "the NVIDIA driver shows no GPU"),
            (34, "cuInit returned 34.*the toolkit's stub"),
            (803, "cuInit returned 803.*different versions; restart the machine"),
            (999, "cuInit returned 999.*see the system's log"),
        ],
    )
    def test_one_that_does_not_start(self, monkeypatch, status, words):
        assert re.search(words, self.reported(monkeypatch, self.Library(status)))

    def test_its_cause_is_kept_apart_from_the_remedy(self, monkeypatch):
        self.reported(monkeypatch, self.Library(803))
        what, remedy = gpus.driver_fault()
        assert what.endswith(
            "(cuInit returned 803): its library and its kernel module have different versions"
        )
        assert remedy == "restart the machine"
        self.reported(monkeypatch, self.Library(999))
        assert gpus.driver_fault()[1] == "see the system's log"

    def test_one_that_is_none(self, monkeypatch):
        reported = self.reported(monkeypatch, object())
        assert (
            "cannot be loaded ('object' object has no attribute 'cuInit'): reinstall the driver"
            in reported
        )

    @pytest.mark.skipif(sys.platform != "linux", reason="its loader's words are looked at")
    def test_a_damaged_one_is_not_reported_to_be_missing(self, tmp_path):
        (tmp_path / "libcuda.so.1").write_text("no library")
        ask = "from cuda_cyclegan.engine.probe.gpus import why_no_cuda; print(why_no_cuda())"
        variables = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
        said = subprocess.check_output([sys.executable, "-c", ask], env=variables, text=True)
        assert "cannot be loaded" in said
        assert f"{tmp_path}/libcuda.so.1" in said

    @pytest.mark.parametrize(
        ("visible", "words"),
        [(None, "shows no GPU"), ("", "shows no GPU; CUDA_VISIBLE_DEVICES is ''")],
    )
    def test_gpus_that_are_hidden_are_reported(self, monkeypatch, visible, words):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert self.reported(monkeypatch, self.Library(100)).endswith(words)


def test_a_gpu_that_is_too_old_is_reported(machine):
    machine["cards"] = [gpus.CudaDevice(0, "Tesla V100", (7, 0), 1 << 34, None, "CUDA 12")]
    assert "7.5" in gpus.why_no_cuda()


def test_the_probe_loads_no_cuda_package():
    code = (
        "import sys; before = set(sys.modules);"  # cuda-bindings has python itself load a part
        "from cuda_cyclegan.engine.probe.gpus import why_no_cuda; why_no_cuda();"
        "heavy = ('cuda', 'cudnn', 'torch', 'numpy');"
        "print([m for m in set(sys.modules) - before if m.split('.')[0] in heavy])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


class Management:
    """NVML of a machine with three cards."""

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 3
        return 0


@pytest.mark.parametrize(
    ("visible", "management", "count"),
    [(None, Management(), 3), (None, None, 0), ("1", Management(), 1), ("GPU-a,GPU-b", None, 2)],
)
def test_gpus_are_counted_without_a_driver(monkeypatch, visible, management, count):
    monkeypatch.setattr(gpus, "management_library", lambda: management)
    monkeypatch.setattr(gpus, "visible_names", lambda: visible and tuple(visible.split(",")))
    assert gpus.visible_gpu_count() == count


def test_a_lone_gpu_is_one_that_can_be_used(machine):
    assert gpus.only_usable_gpu() == CARD
    machine["cards"].append(CARD)
    assert gpus.only_usable_gpu() is None
    machine["cards"] = [gpus.CudaDevice(0, "Tesla V100", (7, 0), 1 << 34, None, "CUDA 12")]
    assert gpus.only_usable_gpu() is None


BAD = 101


class Driver:
    """Numbers its devices from 100; status: what keeping a context comes to."""

    def __init__(self, status: int = 0) -> None:
        self._status = status
        self.calls: list[tuple[str, int]] = []

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = 100 + index
        return 0

    def cuDevicePrimaryCtxRetain(self, _context: object, device: Any) -> int:  # noqa: N802
        self.calls.append(("retain", device.value))
        return self._status

    def cuDevicePrimaryCtxRelease_v2(self, device: int) -> int:  # noqa: N802
        self.calls.append(("release", device))
        return 0


@pytest.fixture
def use_driver(monkeypatch: pytest.MonkeyPatch) -> Callable[[Driver | None], None]:
    return lambda driver: monkeypatch.setattr(gpus, "driver_library", lambda: driver)


def test_the_context_is_made_beside_the_block_and_kept_until_its_end(
    use_driver: Callable[[Driver | None], None],
) -> None:
    driver, begun, chosen = Driver(), threading.Event(), threading.Event()
    use_driver(driver)

    def choose() -> int:
        assert begun.wait(ENOUGH)  # which only the block sets
        chosen.set()
        return 1

    with gpus.early_context(choose, lambda: None):
        begun.set()
        assert chosen.wait(ENOUGH)
    assert driver.calls == [("retain", 101), ("release", 101)]


def test_a_context_that_is_refused_is_not_released(
    use_driver: Callable[[Driver | None], None],
) -> None:
    driver = Driver(BAD)
    use_driver(driver)
    with gpus.early_context(lambda: 0, lambda: None):
        pass
    assert driver.calls == [("retain", 100)]


def test_nothing_happens_without_a_driver_or_a_choice(
    use_driver: Callable[[Driver | None], None],
) -> None:
    use_driver(None)
    with gpus.early_context(lambda: 0, lambda: None):
        pass
    driver = Driver()
    use_driver(driver)
    with gpus.early_context(lambda: None, lambda: None):
        pass
    assert driver.calls == []


def test_modules_that_open_the_gpu_are_loaded_beside_its_context(
    use_driver: Callable[[Driver | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, is_loaded = Driver(), threading.Event()
    use_driver(driver)
    retain = driver.cuDevicePrimaryCtxRetain

    def retain_later(context: object, device: Any) -> int:
        assert is_loaded.wait(ENOUGH)
        return retain(context, device)

    def load() -> None:
        is_loaded.set()
        raise ImportError("cudnn")  # which opening the card tells of

    monkeypatch.setattr(driver, "cuDevicePrimaryCtxRetain", retain_later)
    with gpus.early_context(lambda: 0, load):
        pass
    assert driver.calls == [("retain", 100), ("release", 100)]


def test_nothing_is_loaded_where_there_is_no_gpu(
    use_driver: Callable[[Driver | None], None],
) -> None:
    use_driver(Driver())
    loaded = list[str]()
    with gpus.early_context(lambda: None, lambda: loaded.append("packages")):
        pass
    assert loaded == []


@pytest.mark.parametrize(
    ("asked", "cards", "expected"),
    [
        ("cuda:3", [], 3),
        ("cuda:0,1", [(0, (9, 0)), (1, (9, 0))], None),
        ("cuda", [(0, (9, 0)), (1, (9, 0))], None),
        ("cuda", [(0, (7, 0)), (1, (9, 0))], 1),
        ("auto", [(0, (7, 0)), (1, (9, 0)), (2, (9, 0))], 1),
        ("auto", [], None),
        ("cpu", [(0, (9, 0))], None),
        ("onnxruntime:TensorRT", [(0, (9, 0))], None),
    ],
)
def test_it_is_the_context_of_the_one_gpu_that_a_name_stands_for(
    asked: str,
    cards: list[tuple[int, tuple[int, int]]],
    expected: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = [CudaDevice(index, "card", chip, 1 << 34, None, "CUDA 13") for index, chip in cards]
    chosen: list[int | None] = []
    usable = [card for card in there if card.capability >= OLDEST_CAPABILITY]
    monkeypatch.setattr(startup, "usable_gpus", lambda: usable)
    monkeypatch.setattr(startup, "early_context", lambda choose, _: chosen.append(choose()))
    startup.early_gpu_context(asked)
    assert chosen == [expected]


NOT_SUPPORTED = 3


class EnergyCounters:
    """NVML with the counters of cards by their addresses, in millijoules; None: has none."""

    def __init__(self, counters: dict[str, int | None]) -> None:
        self.counters = counters
        self._handles = list(counters)

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus: bytes, handle: Any) -> int:  # noqa: N802
        handle._obj.value = 1 + self._handles.index(bus.decode())
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, counted: Any) -> int:  # noqa: N802
        value = self.counters[self._handles[handle.value - 1]]
        if value is None:
            return NOT_SUPPORTED
        counted._obj.value = value
        return 0


@pytest.fixture
def use_management(monkeypatch: pytest.MonkeyPatch) -> Callable[[EnergyCounters | None], None]:
    return lambda library: monkeypatch.setattr(gpus, "management_library", lambda: library)


def test_joules_are_of_the_gpus_that_were_named(
    use_management: Callable[[EnergyCounters], None],
) -> None:
    library = EnergyCounters({"bus 0": 5_000_000_000_000, "bus 1": 70_000})
    use_management(library)
    both, second = EnergyMeter(["bus 0", "bus 1"]), EnergyMeter(["bus 1"])
    library.counters = {"bus 0": 5_000_000_002_500, "bus 1": 71_000}
    of_both, of_second = both.read(), second.read()
    assert of_both
    assert of_second
    assert (of_both.joules, of_second.joules) == (3.5, 1.0)
    assert of_both.seconds > 0


def test_nothing_is_reported_where_a_gpu_has_no_counter(
    use_management: Callable[[EnergyCounters], None],
) -> None:
    use_management(EnergyCounters({"bus 0": 1000, "bus 1": None}))
    assert EnergyMeter(["bus 0"]).read()
    assert EnergyMeter(["bus 0", "bus 1"]).read() is None


def test_nothing_is_reported_without_a_gpu_or_nvml(
    use_management: Callable[[EnergyCounters | None], None],
) -> None:
    use_management(EnergyCounters({"bus 0": 1000}))
    assert EnergyMeter([]).read() is None
    use_management(None)
    assert EnergyMeter(["bus 0"]).read() is None


def test_watts_are_joules_by_seconds() -> None:
    assert Energy(300.0, 2.0).watts == 150.0
    assert Energy(0.0, 0.0).watts == 0.0


def test_only_what_outlasts_the_counters_steps_is_exact() -> None:
    assert Energy(300.0, 2.0).is_exact
    assert not Energy(300.0, 0.4).is_exact
