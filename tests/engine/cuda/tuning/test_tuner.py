"""The search takes what was measured fastest and measures nothing twice; cuDNN is a stand-in."""

import types
from dataclasses import replace
from math import inf

import pytest

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from support.cudnn_stand_in import cudnn_where_there_is_none

from cuda_cyclegan.engine.compiler.steps import ConvShape
from cuda_cyclegan.engine.cuda.tuning.cache import TuningCache
from cuda_cyclegan.engine.errors import CudaError, DeviceMemoryError
from cuda_cyclegan.engine.options import SearchSettings, ignore_progress

with cudnn_where_there_is_none():
    from cuda_cyclegan.engine.cuda.open_gpu import OpenGpu
    from cuda_cyclegan.engine.cuda.tuning import tactics, tuner
    from cuda_cyclegan.engine.cuda.tuning.convolution_check import TacticVerdict

CUBE = (8, 8, 8)
ONE, ZERO = (1, 1, 1), (0, 0, 0)
SHAPE = ConvShape(1, CUBE, 8, CUBE, 8, (3, 3, 3), ONE, ONE, ONE, "fp16")
SMALL = ConvShape(1, CUBE, 8, CUBE, 8, ONE, ONE, ZERO, ZERO, "fp16")
PLANS = {  # workspace and microseconds; the third one does not build
    "slow": (0, 30.0),
    "hungry": (1 << 20, 10.0),
    "broken": (None, 0.0),
    "middling": (4096, 20.0),
}


PROGRAM = types.SimpleNamespace(
    layout=types.SimpleNamespace(in_blocks=True), steps=[SMALL, SHAPE, SMALL]
)
"""A program of three convolutions, of which the second one does most of the work."""


class Plans:
    """Plans that cuDNN offers: two heuristics that name the same plans, or the one of a name."""

    unnameable: frozenset[str] = frozenset()
    of_first_heuristic = tuple(PLANS)

    def __init__(
        self, _library, _shape, name: str | None = None, *, is_quick: bool = False
    ) -> None:
        if name in self.unnameable:
            raise CudaError("create_execution_plan", "the frontend has no name for it", "search")
        self.asked = name
        self.is_quick = is_quick
        self.names = (name,) if name else (*self.of_first_heuristic, *(() if is_quick else PLANS))
        self.count = len(self.names)
        self.built: list[str] = []

    def name(self, index: int) -> str:
        return self.names[index]

    def run(self, index: int, *_) -> None: ...

    def build(self, index: int) -> int:
        workspace, _ = PLANS[self.names[index]]
        if workspace is None:
            raise CudaError("build_plan_at_index", "not supported", "use another")
        self.built.append(self.names[index])
        return workspace


@pytest.fixture
def search(monkeypatch):
    """A search whose clock reads the table above, and the names that it has measured."""
    measured: list[str] = []

    class Bench:
        def __init__(self, *_) -> None:
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_) -> None:
            pass

        def at(self, _name) -> int:
            return 0

        def time(self, _queue, _best) -> float:
            measured.append(plans[-1].built[-1])
            return PLANS[measured[-1]][1]

    class Check:
        def __init__(self, *_) -> None:
            pass

        def verdict(self, *_):
            return TacticVerdict(None, 0.0)

        def unsteady(self, _queue, _workspace, meanwhile) -> None:
            meanwhile()

    plans: list[Plans] = []

    def offered(*asked, **options):
        plans.append(Plans(*asked, **options))
        return plans[-1]

    monkeypatch.setattr(tactics, "ConvolutionPlans", offered)
    monkeypatch.setattr(tuner, "open_bench", Bench)
    monkeypatch.setattr(tuner, "ConvolutionCheck", Check)
    monkeypatch.setattr(
        tuner, "planned", lambda steps: [types.SimpleNamespace(shape=one) for one in steps]
    )
    cache = TuningCache(None, {"card": "none"})
    context = types.SimpleNamespace(use=lambda: None)
    gpu = OpenGpu(context, None, None, types.SimpleNamespace())

    def find(
        workspace: int, effort: str = "full", seconds: float = 60, shapes=(SHAPE, SHAPE)
    ) -> str:
        asked = SearchSettings(effort, seconds)
        found = tuner.Tuner(gpu, cache, 0, asked).convolutions(list(shapes), workspace)
        return found[shapes[-1]].name

    def later(until: float, effort: str = "auto") -> None:
        first = tuner.Tuner(gpu, cache, 0, SearchSettings(effort))
        first.search_later(None, PROGRAM, 0, 1 << 20, until, ignore_progress)

    find.later = later
    return find, measured, plans


def test_the_fastest_plan_is_taken_and_each_is_measured_once(search):
    find, measured, _ = search
    assert find(1 << 20) == "hungry"
    assert measured == ["slow", "hungry", "middling"]
    assert find(1 << 20) == "hungry"
    assert find(8192) == "middling"
    assert find(0) == "slow"
    assert len(measured) == 3


def test_a_kept_plan_is_made_by_its_name_without_the_heuristics(search):
    find, measured, plans = search
    find(1 << 20)
    plans.clear()
    assert find(1 << 20) == "hungry"
    assert [each.asked for each in plans] == ["hungry"]
    assert len(measured) == 3


def test_a_kept_plan_that_its_name_does_not_make_is_taken_from_the_heuristics(search, monkeypatch):
    find, measured, plans = search
    find(1 << 20)
    plans.clear()
    monkeypatch.setattr(Plans, "unnameable", frozenset({"hungry"}))
    assert find(1 << 20) == "hungry"
    assert [each.asked for each in plans] == [None]
    assert len(measured) == 3


def test_more_workspace_than_was_tried_is_tried(search):
    find, measured, _ = search
    assert find(0) == "slow"
    assert find(1 << 20) == "hungry"
    assert measured.count("hungry") == 1


def test_without_tuning_the_first_plan_that_builds_is_taken(search):
    find, measured, _ = search
    assert find(1 << 20, "off") == "slow"
    assert measured == []


def test_without_tuning_other_heuristics_are_asked_if_the_first_has_no_plan(search, monkeypatch):
    find, measured, plans = search
    assert find(1 << 20, "off") == "slow"
    assert [each.is_quick for each in plans] == [True]
    monkeypatch.setattr(Plans, "of_first_heuristic", ("broken",))
    assert find(1 << 20, "off", shapes=[SMALL]) == "slow"
    assert [each.is_quick for each in plans] == [True, True, False]
    assert measured == []


def test_without_tuning_a_plan_that_was_kept_is_looked_for_in_all_heuristics(search, monkeypatch):
    find, measured, plans = search
    assert find(1 << 20) == "hungry"
    plans.clear()
    monkeypatch.setattr(tuner, "VERSION", "later")
    monkeypatch.setattr(Plans, "of_first_heuristic", ("slow",))
    assert find(1 << 20, "off") == "hungry"
    assert [each.is_quick for each in plans] == [False]
    assert len(measured) == 3


def test_plans_of_the_next_convolution_are_built_during_a_check(search, monkeypatch):
    find, _, plans = search
    usual, built = tuner.ConvolutionCheck, []

    class Noting(usual):
        def unsteady(self, queue, workspace, meanwhile) -> None:
            usual.unsteady(self, queue, workspace, meanwhile)
            built.append([list(each.built) for each in plans])

    monkeypatch.setattr(tuner, "ConvolutionCheck", Noting)
    assert find(1 << 20, "off", shapes=[SHAPE, SMALL, SHAPE]) == "slow"
    assert [len(of_each) for of_each in built] == [2, 2]
    assert built[0][1] == ["slow"]
    plans.clear()
    find(1 << 20, "off", shapes=[SHAPE, SMALL])
    assert [each.asked for each in plans] == ["slow", "slow"]


@pytest.fixture
def checked_layer(search, monkeypatch):
    """Checks one layer by a tuner of an effort; which plans were built during the check."""
    _, _, plans = search
    step = types.SimpleNamespace(kernel="own", output=None)
    layout = types.SimpleNamespace(in_blocks=False)
    kernels = types.SimpleNamespace(image_key=lambda _source: "image", gpu=None)
    gpu = OpenGpu(types.SimpleNamespace(), None, None, kernels)
    built: list[list[str]] = []

    def wrong_step(*arguments) -> None:
        arguments[-1]()
        built.extend(list(each.built) for each in plans)

    monkeypatch.setattr(tuner.layer_check, "wrong_step", wrong_step)
    monkeypatch.setattr(tuner, "checked", lambda _steps: [step])

    def check(effort: str, shape=SHAPE):
        one = tuner.Tuner(gpu, TuningCache(None, {"card": "none"}), 0, SearchSettings(effort))
        one.check_layers(types.SimpleNamespace(layout=layout, steps=[shape, SMALL]))
        return one, built

    return check


def test_a_plan_of_the_first_convolution_is_built_while_a_layer_is_checked(search, checked_layer):
    _, _, plans = search
    one, built = checked_layer("off")
    assert built == [["slow"]]
    assert one.convolutions([SHAPE, SMALL], 1 << 20)[SMALL].name == "slow"
    assert len(plans) == 2


def test_no_plan_of_a_depthwise_convolution_is_built_while_a_layer_is_checked(checked_layer):
    one, built = checked_layer("off", replace(SHAPE, groups=8))
    assert built == [["slow"]]
    assert [shape for shape, _ in one._ready] == [SMALL]


def test_all_plans_of_a_quick_search_are_built_while_a_layer_is_checked(checked_layer):
    _, built = checked_layer("quick")
    assert set(built[0]) == {"slow", "hungry", "middling"}


def test_a_spent_budget_ends_the_search_with_what_is_known(search):
    find, measured, _ = search
    assert find(1 << 20, seconds=0) == "slow"
    assert measured == ["slow"]


def test_an_automatic_search_times_plans_of_the_main_convolution_alone(search):
    find, measured, _ = search
    assert find(1 << 20, "auto", shapes=[SHAPE, SMALL]) == "slow"
    assert measured == ["slow", "hungry", "middling"]
    assert find(1 << 20, "auto", shapes=[SMALL, SHAPE]) == "hungry"
    assert len(measured) == 3


def test_an_automatic_search_takes_what_an_earlier_one_has_found(search):
    find, measured, _ = search
    assert find(1 << 20, shapes=[SMALL]) == "hungry"
    assert find(1 << 20, "auto", shapes=[SHAPE, SMALL]) == "hungry"
    assert len(measured) == 6


def test_levels_that_search_first_leave_nothing_to_later(search):
    find, _, plans = search
    for effort in ("off", "quick", "full"):
        find.later(inf, effort)
    assert plans == []


def test_a_later_search_without_memory_ends(search, monkeypatch):
    trials = []

    def open_bench(*_) -> None:
        trials.append(None)
        raise DeviceMemoryError("full")

    find, _, plans = search
    monkeypatch.setattr(tuner, "open_bench", open_bench)
    find.later(inf)
    assert [len(trials), plans] == [1, []]


def test_a_later_search_completes_the_layers_that_do_most_of_the_work(search):
    find, measured, plans = search
    find.later(until=0.0)
    assert plans == []
    find.later(until=inf)
    assert [len(measured), len(plans)] == [6, 2]
    find.later(until=inf)
    assert len(plans) == 2  # nothing is left to find
    assert find(1 << 20, "auto", shapes=[SHAPE, SMALL]) == "hungry"


def test_a_later_search_that_is_stopped_keeps_the_layers_that_it_has_completed(search, monkeypatch):
    find, measured, _ = search
    times = iter([1.0])
    monkeypatch.setattr(tuner, "monotonic", lambda: next(times, 9.0))
    find.later(until=5.0)
    assert measured == ["slow", "hungry", "middling"]
    assert find(1 << 20, "auto", shapes=[SMALL, SHAPE]) == "hungry"
    assert find(1 << 20, "auto", shapes=[SHAPE, SMALL]) == "slow"
    assert len(measured) == 3
