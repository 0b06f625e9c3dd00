"""A model that stays open: the command's voxels, any number of threads, and nothing left behind."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from support.batch_world import scan, stored, tiny_model
from support.dicom_phantoms import Phantom
from support.driver_in_memory import needs_compiler, output_of
from support.result_marks import read_mark
from support.translate_world import World

import cuda_cyclegan as cc
from cuda_cyclegan.engine.devices import Device
from cuda_cyclegan.engine.errors import PrecisionOverflowError
from cuda_cyclegan.io.errors import UnreadableScanError, UnsupportedScanError
from cuda_cyclegan.pipelines import decisions
from cuda_cyclegan.pipelines.errors import PreparationError, SettingsError
from cuda_cyclegan.pipelines.run import networks

nibabel: Any = _nibabel
AFFINE = np.diag([-1.0, 1.0, 1.0, 1.0])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> cc.Model:
    return cc.load_model(tiny_model(tmp_path_factory.mktemp("model") / "m.safetensors"))


@pytest.fixture
def translator(model: cc.Model) -> Iterator[cc.Translator]:
    with cc.Translator(model, device="cpu") as opened:
        yield opened


def noise(seed: int, shape: tuple[int, ...] = (20, 18, 16)) -> "np.ndarray[Any, Any]":
    return np.random.default_rng(seed).integers(0, 1000, shape).astype(np.int16)


class TestResults:
    def test_are_those_of_the_command(self, tmp_path: Path) -> None:
        world = World(tmp_path)
        file = scan(world.inputs / "a.nii.gz")
        assert world.translate("--device", "cpu").exit_code == 0
        made = nibabel.load(world.output / "a.nii.gz")
        with cc.Translator(cc.load_model(world.model), device="cpu") as translator:
            result = translator.translate_file(file)
        assert np.array_equal(result.voxels, np.asarray(made.dataobj.get_unscaled()))
        assert (result.slope, result.intercept) == (made.dataobj.slope, made.dataobj.inter)
        assert np.array_equal(result.affine, made.affine)

    def test_are_equal_for_an_array_and_its_file(
        self, translator: cc.Translator, tmp_path: Path
    ) -> None:
        of_file = translator.translate_file(stored(tmp_path / "a.nii", noise(1)))
        of_array = translator.translate(noise(1), np.eye(4))
        assert np.array_equal(of_file.voxels, of_array.voxels)
        assert of_array.voxels.dtype == np.int16
        assert of_array.values().dtype == np.float32

    def test_lie_where_the_scan_lies(self, translator: cc.Translator) -> None:
        turned = AFFINE @ np.eye(4)[[2, 0, 1, 3]]
        result = translator.translate(noise(2), turned)
        assert result.shape == (20, 18, 16)
        assert np.array_equal(result.affine, turned)

    @pytest.mark.parametrize("dtype", ["u1", ">i2", "f2", "f4", "f8", "i8"])
    def test_are_made_of_any_plain_numbers(self, translator: cc.Translator, dtype: str) -> None:
        voxels = (noise(3) // 5).astype(dtype)
        result = translator.translate(voxels, AFFINE)
        assert np.isfinite(result.values()).all()

    def test_leave_what_was_given_as_it_was(self, translator: cc.Translator) -> None:
        voxels, affine = noise(4), AFFINE.copy()
        voxels.flags.writeable = affine.flags.writeable = False
        result = translator.translate(voxels, affine)
        assert np.array_equal(voxels, noise(4))
        assert not np.shares_memory(result.voxels, voxels)
        result.affine[:] = 0
        assert np.array_equal(affine, AFFINE)

    def test_do_not_exist_for_masked_voxels(self, translator: cc.Translator) -> None:
        with pytest.raises(UnsupportedScanError, match="masked"):
            translator.translate(np.ma.masked_less(noise(4), 100), AFFINE)

    def test_have_the_format_of_a_dicom_folder(
        self, translator: cc.Translator, tmp_path: Path
    ) -> None:
        Phantom("MR").write(tmp_path / "series")
        result = translator.translate_file(tmp_path / "series")
        assert result.format == "dicom"
        assert cc.to_nibabel(result).shape == result.shape

    def test_say_that_they_are_synthetic(
        self, translator: cc.Translator, model: cc.Model, tmp_path: Path
    ) -> None:
        result = translator.translate(noise(5), AFFINE)
        cc.to_nibabel(result).to_filename(tmp_path / "a.nii.gz")
        mark = read_mark(tmp_path / "a.nii.gz")
        assert mark is not None
        assert mark == result.mark
        assert (mark.source, mark.target) == (model.card.source, model.card.target)
        assert mark.model_sha256 == model.sha256[:12]

    def test_are_made_of_one_volume_of_several(
        self, translator: cc.Translator, tmp_path: Path
    ) -> None:
        series = np.stack([noise(5), noise(6)], axis=3)
        file = stored(tmp_path / "a.nii", series)
        second = translator.translate_file(file, volume_index=1)
        assert np.array_equal(second.voxels, translator.translate(noise(6), np.eye(4)).voxels)
        with pytest.raises(UnsupportedScanError):
            translator.translate_file(file)


class TestThreads:
    def test_several_get_right_results(self, translator: cc.Translator) -> None:
        shapes = [(20, 18, 16), (24, 16, 30), (17, 21, 19)]
        scans = [noise(seed, shapes[seed % 3]) for seed in range(12)]
        alone = [translator.translate(voxels, AFFINE).voxels for voxels in scans]
        start = threading.Barrier(4)

        def work(first: int) -> list[Any]:
            start.wait()
            return [translator.translate(voxels, AFFINE).voxels for voxels in scans[first::4]]

        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(work, range(4)))
        for first, results in enumerate(together):
            for expected, found in zip(alone[first::4], results, strict=True):
                assert np.array_equal(expected, found)

    def test_none_is_left(self, model: cc.Model) -> None:
        before = set(threading.enumerate())
        with cc.Translator(model, device="cpu") as translator:
            translator.translate(noise(0), AFFINE)
        assert set(threading.enumerate()) <= before

    def test_it_need_not_be_the_main_one(self, model: cc.Model) -> None:
        def work() -> Any:
            with cc.Translator(model, device="cpu") as translator:
                return translator.translate(noise(0), AFFINE).shape

        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(work).result() == (20, 18, 16)


def test_nothing_is_printed_or_handled(
    model: cc.Model, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with cc.Translator(model, device="cpu") as translator:
        translator.translate_file(scan(tmp_path / "a.nii.gz"))
        assert [signal.getsignal(number) for number in numbers] == before
    assert capfd.readouterr() == ("", "")
    assert [file.name for file in tmp_path.iterdir()] == ["a.nii.gz"]


def test_the_events_show_of_the_device_and_of_each_patch(model: cc.Model) -> None:
    events: list[cc.Event] = []
    with cc.Translator(model, device="cpu", on_event=events.append) as translator:
        translator.translate_volume(
            cc.from_nibabel(nibabel.Nifti1Image(noise(0), AFFINE)), name="mine"
        )
    opened, *patches = events
    assert opened == cc.DeviceOpened(translator.device)
    reported = [patch for patch in patches if isinstance(patch, cc.TilesDone)]
    assert [patch.done for patch in reported] == list(range(reported[0].total + 1))
    assert {patch.study for patch in patches if isinstance(patch, cc.TilesDone)} == {"mine"}


def test_an_interrupted_translation_leaves_the_translator_as_it_was(model: cc.Model) -> None:
    def interrupt(event: cc.Event) -> None:
        if isinstance(event, cc.TilesDone) and event.study == "interrupt" and event.done:
            raise KeyboardInterrupt

    volume = cc.from_nibabel(nibabel.Nifti1Image(noise(0), AFFINE))
    with cc.Translator(model, device="cpu", on_event=interrupt) as translator:
        before = translator.translate_volume(volume)
        with pytest.raises(KeyboardInterrupt):
            translator.translate_volume(volume, "interrupt")
        assert np.array_equal(before.voxels, translator.translate_volume(volume).voxels)


class TestRefusals:
    def test_a_closed_one_reports_it(self, model: cc.Model) -> None:
        translator = cc.Translator(model, device="cpu")
        translator.close()
        translator.close()
        with pytest.raises(RuntimeError, match="closed"):
            translator.translate(noise(0), AFFINE)

    @pytest.mark.parametrize(
        ("settings", "reported"),
        [
            ({"device": "gpuu"}, "not one of auto, cpu"),
            ({"precision": "fp16"}, ", not in fp16"),
            ({"precision": "fp12"}, "precision must be one of bf16"),
            ({"overlap": 2.0}, "overlap=2 is out of its bounds; use 0 to 0.9"),
            ({"overlap": float("nan")}, "overlap=nan"),
            ({"blend": "cubic"}, "blend must be one of constant"),
            ({"patch": (16, 16)}, r"\(16, 16\) is not a patch \(D, H, W\)"),
        ],
    )
    def test_errors_of_settings_name_them(
        self, model: cc.Model, settings: dict[str, Any], reported: str
    ) -> None:
        with pytest.raises(SettingsError, match=reported):
            cc.Translator(model, **{"device": "cpu", **settings})

    def test_errors_of_several_devices(
        self, model: cc.Model, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        two = (Device("cuda", "fp16", ("fp16",)), Device("cuda", "fp16", ("fp16",), index=1))
        monkeypatch.setattr(decisions, "choose_devices", lambda *_: two)
        with pytest.raises(SettingsError, match="cuda:0,1 names several"):
            cc.Translator(model, device="cuda:0,1")

    @pytest.mark.parametrize(
        ("voxels", "affine"),
        [
            (np.zeros((4, 4), np.int16), AFFINE),
            (np.zeros((4, 4, 4, 1), np.int16), AFFINE),
            (np.zeros((4, 0, 4), np.int16), AFFINE),
            (np.zeros((4, 4, 4), np.complex64), AFFINE),
            (np.zeros((4, 4, 4), bool), AFFINE),
            (np.zeros((4, 4, 4), np.int16), np.eye(3)),
        ],
    )
    def test_errors_of_arrays_that_are_no_scan(
        self, translator: cc.Translator, voxels: Any, affine: Any
    ) -> None:
        with pytest.raises(UnsupportedScanError):
            translator.translate(voxels, affine)

    @pytest.mark.parametrize("affine", [np.zeros((4, 4)), np.full((4, 4), np.nan)])
    def test_errors_of_affines_that_place_nothing(
        self, translator: cc.Translator, affine: Any
    ) -> None:
        with pytest.raises(PreparationError):
            translator.translate(noise(0), affine)

    def test_errors_of_paths_that_are_not_one_scan(
        self, translator: cc.Translator, tmp_path: Path
    ) -> None:
        with pytest.raises(cc.ScanError, match="does not exist"):
            translator.translate_file(tmp_path / "none.nii")
        with pytest.raises(UnreadableScanError, match="contains no scan"):
            translator.translate_file(tmp_path)
        scan(tmp_path / "a.nii.gz")
        scan(tmp_path / "b.nii.gz")
        with pytest.raises(UnsupportedScanError, match=r"contains 2 scans \(a.nii.gz, b.nii.gz\);"):
            translator.translate_file(tmp_path)
        scan(tmp_path / "c.nii.gz")
        scan(tmp_path / "d.nii.gz")
        with pytest.raises(UnsupportedScanError, match=r"contains 4 scans .*, c.nii.gz, \.\.\.\);"):
            translator.translate_file(tmp_path)


def test_values_beyond_a_precision_are_computed_in_a_wider_one(
    model: cc.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    class Narrow:
        graph, device = model.network.graph, "a card"

        def __init__(self, precision: str) -> None:
            self._precision = precision

        def __call__(self, patches: Any) -> Any:
            if self._precision == "fp16":
                raise PrecisionOverflowError("too large")
            return patches

    @contextmanager
    def in_precision(_network: Any, _device: Any, precision: str, *_: Any) -> Iterator[Narrow]:
        opened.append(precision)
        yield Narrow(precision)
        opened.append(f"closed {precision}")

    card = Device("cuda", "fp16", ("fp16", "fp32"))
    monkeypatch.setattr(decisions, "choose_devices", lambda *_: (card,))
    monkeypatch.setattr(networks, "open_generator", in_precision)
    with cc.Translator(model) as translator:
        result = translator.translate(noise(0), AFFINE)
    assert result.notes == (
        "A value exceeded the range of fp16; the computation was repeated in fp32.",
    )
    assert opened == ["fp16", "closed fp16", "fp32", "closed fp32"]


def test_caller_that_cannot_learn_that_it_is_open_gets_none(
    model: cc.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    right: Callable[..., Any] = networks.open_generator

    @contextmanager
    def watched(*asked: Any) -> Iterator[Any]:
        with right(*asked) as generator:
            try:
                yield generator
            finally:
                closed.append(True)

    def deaf(_: cc.Event) -> None:
        raise OSError("a broken pipe")

    monkeypatch.setattr(networks, "open_generator", watched)
    with pytest.raises(OSError, match="a broken pipe"):
        cc.Translator(model, device="cpu", on_event=deaf)
    assert closed == [True]


MEMORY = """
import sys
from pathlib import Path
import numpy as np
import cuda_cyclegan as cc

def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

model, voxels = cc.load_model(sys.argv[1]), np.random.default_rng(0).integers(0, 900, (24, 24, 24))
levels, closed = [], []
for count in range(100):
    with cc.Translator(model, device="cpu") as translator:
        if count % 10 == 0:
            translator.translate(voxels, np.eye(4))
    closed.append(translator)
    levels.append(held())
print((max(levels[50:]) - max(levels[:50])) / 2**20)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_hundred_take_no_more_memory_than_a_few(tmp_path: Path) -> None:
    file = tiny_model(tmp_path / "m.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(file)], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 4  # MiB


@pytest.mark.slow
@needs_compiler
def test_a_hundred_leave_nothing_on_a_card(tmp_path: Path) -> None:
    found = json.loads(output_of(tmp_path, "support.translator_in_memory", str(tmp_path / "cache")))
    assert min(found["opened"]) > 1 << 20
    assert found["closed"] == [0] * 100
