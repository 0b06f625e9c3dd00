"""The way back starts from the result as it is stored, and its error is that of a user who would
translate that file with the other model.
"""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import numpy.typing as npt
import pytest
from support.batch_world import identity_model
from support.calibration_scans import head
from support.each_pair import each_pair
from support.model_pair import WINDOW, random_model
from support.queue_world import QueueWorld

from cuda_cyclegan.engine.devices import choose_device
from cuda_cyclegan.engine.model.model_file import Model, decode_model, encode_model, load_model
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.volume import AnyArray
from cuda_cyclegan.pipelines import cycle
from cuda_cyclegan.pipelines.calibration import opened_translation
from cuda_cyclegan.pipelines.cycle import host_bytes, plan_back
from cuda_cyclegan.pipelines.run.host_arrays import HostArrays
from cuda_cyclegan.pipelines.settings import CycleCheck, TranslateOptions
from cuda_cyclegan.pipelines.stopwatch import Stopwatch
from cuda_cyclegan.pipelines.study.translator import StudyTranslator

nibabel: Any = _nibabel
LARGE = (64, 128, 128)
CHECK = CycleCheck("b", has_map=True)
AFFINE = np.array([[0, -1.1, 0, 5], [0.9, 0, 0, -7], [0, 0, 1.3, 2], [0, 0, 0, 1]])


def with_large_patches(path: Path) -> Model:
    model = load_model(path)
    card = replace(model.card, patch=LARGE)
    content = encode_model(card, model.network, model.reference_input, model.reference_output)
    return decode_model(content)


def rows(world: QueueWorld, *options: str) -> list[dict[str, Any]]:
    report = world.folder / "report.json"
    done = world.command("translate", "--report", str(report), *options)
    assert done.exit_code == 0, done.output
    return json.loads(report.read_text())["studies"]


def values(path: Path) -> FloatArray:
    return nibabel.load(path).get_fdata(dtype=np.float32)


@pytest.mark.parametrize(
    ("dtype", "spacing", "turned"),
    each_pair([np.int16, np.float32], [None, (1.5, 1.4, 1.2)], [False, True]),
)
def test_it_is_what_a_user_gets_who_translates_the_result(
    tmp_path: Path, dtype: type, spacing: tuple[float, float, float] | None, turned: bool
) -> None:
    """Values agree to half a step of the voxel type of the file that this user compares."""
    world = QueueWorld(tmp_path)
    world.inputs.mkdir()
    nibabel.Nifti1Image((head(1) * 1.3).astype(dtype), AFFINE).to_filename(world.inputs / "a.nii")
    random_model(world.model, spacing=spacing)
    back = tmp_path / "back.safetensors"
    if turned:
        random_model(back, "T2", "T1", 1, spacing and spacing[::-1], "SPL")
    else:
        random_model(back, "T2", "T1", 1, spacing)
    [row] = rows(world, "--cycle-check", str(back), "--cycle-map")
    result = str(world.output / "a.nii")
    by_hand = ["translate", result, "--allow-synthetic", "--model", str(back)]
    world.did(*by_hand, "--output", str(tmp_path / "returned"))
    scan = np.clip(values(world.inputs / "a.nii"), WINDOW.low, WINDOW.high)
    returned = values(tmp_path / "returned" / "a.nii")
    foreground = scan > 250  # what Otsu finds lies in the wide gap about it
    expected = float(np.abs(returned - scan)[foreground].mean())
    assert row["cycle"]["error"] == pytest.approx(expected, abs=0.3 if dtype is np.int16 else 0.01)
    assert row["cycle"]["unit"] == 500
    assert row["cycle"]["back"] == load_model(back).identity
    [file] = row["maps"]
    assert file.endswith("a.map-cycle.nii")
    shown = values(Path(file))
    step = 0.6 if dtype is np.int16 else 0.05
    assert np.abs(shown - np.abs(returned - scan)).max() <= step
    assert float(shown[foreground].mean()) == pytest.approx(row["cycle"]["error"], rel=1e-3)
    assert np.array_equal(nibabel.load(file).affine, nibabel.load(world.inputs / "a.nii").affine)


def test_networks_that_do_nothing_lead_back_to_the_scan(tmp_path: Path) -> None:
    world = QueueWorld(tmp_path)
    world.scans(1)
    identity_model(world.model)
    back = identity_model(tmp_path / "back.safetensors", "T1", "T2")
    [row] = rows(world, "--cycle-check", str(back))
    assert row["cycle"]["error"] == pytest.approx(0, abs=1e-4)


def test_no_network_waits_for_a_scan_to_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, threads = QueueWorld(tmp_path), list[str]()
    world.scans(2)
    identity_model(world.model)
    back = identity_model(tmp_path / "back.safetensors", "T1", "T2")
    compared = cycle.mean_difference

    def noted(*given: Any) -> float:
        threads.append(threading.current_thread().name)
        return compared(*given)

    monkeypatch.setattr(cycle, "mean_difference", noted)
    assert len(rows(world, "--cycle-check", str(back))) == 2
    assert [name.split()[0] for name in threads] == ["write", "write"]


def test_the_result_is_the_one_without_a_check(tmp_path: Path) -> None:
    made: list[bytes] = []
    for name, options in (("plain", ()), ("checked", ("--cycle-check", "BACK", "--seam-score"))):
        (tmp_path / name).mkdir()
        world = QueueWorld(tmp_path / name)
        world.scans(1)
        back = random_model(tmp_path / "back.safetensors", "T2", "T1", 1)
        random_model(world.model)
        rows(world, *(str(back) if word == "BACK" else word for word in options))
        made.append((world.output / "000.nii").read_bytes())
    assert made[0] == made[1]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.int16, np.float64])
def test_a_study_holds_no_more_host_memory_than_was_reported(tmp_path: Path, dtype: type) -> None:
    forth = with_large_patches(identity_model(tmp_path / "a.safetensors"))
    back = with_large_patches(identity_model(tmp_path / "b.safetensors", "T1", "T2"))
    scan = tmp_path / "a.nii"
    nibabel.Nifti1Image(head(1, (256, 128, 128)).astype(dtype), np.eye(4)).to_filename(scan)
    options = TranslateOptions(patch=LARGE, precision="fp32", cycle_check=CHECK).resolved()
    arrays, held, timer = HostArrays(), list[int](), Stopwatch()

    def empty(shape: tuple[int, ...], kind: npt.DTypeLike) -> AnyArray:
        made = arrays.empty(shape, kind)
        held.append(arrays.held)
        return made

    translator = StudyTranslator(forth, options, timer, empty)
    scans = translator.read(discover([scan], None).studies[0])
    [volume] = scans.volumes
    plan = translator.plan(scans)
    reported = host_bytes(volume, plan, plan_back(volume, back, options), options)
    study = translator.prepare(scans, plan)
    with opened_translation(forth, back, choose_device("cpu"), options) as both:
        inferred = translator.infer(study, both.generator)
        made = both.back_translator.translate_back(inferred, timer, empty=empty)
        checked = made.compared(timer, empty)
    assert checked.error.error == pytest.approx(0, abs=1e-3)
    assert max(held) <= reported <= 2 * max(held)
