"""Libraries that each command loads: those its work needs, as every other one costs time."""

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import nibabel
import numpy as np
import pytest
import SimpleITK
from support.batch_world import scan, tiny_model
from support.dicom_phantoms import Phantom

WATCHED = {
    *("PIL", "SimpleITK", "cuda.bindings", "cudnn", "imagecodecs", "isal", "matplotlib"),
    *("importlib.metadata", "jinja2", "multiprocessing", "numpy.ma", "tomllib"),
    *("nibabel", "numpy", "onnx", "onnxruntime", "openvino", "psycopg", "pydicom", "rich"),
    *("openvino.tools.ovc.convert", "rich.console", "safetensors", "sqlite3", "torch"),
}
TO_FIND = {"isal", "nibabel", "numpy", "rich"}
"""Studies in NIfTI files, and to list them."""
TO_PLAN = {*TO_FIND, "safetensors"}
QUEUE = {"sqlite3"}
ON_THE_CPU = {*TO_PLAN, "importlib.metadata", "onnx", "onnxruntime"}
LOADED = """
import sys
{before}
from cuda_cyclegan.cli.app import app
try: app(sys.argv[1:])
except SystemExit as end: status = end.code
print(status, *sorted({watched!r} & {{*sys.modules}}))
"""
IN_PROCESSES = {
    f"cuda_cyclegan.pipelines.run.{name}"
    for name in ("messages", "pipe_worker", "process", "shared_batch", "spare_workers")
}
TO_VERIFY = {"cuda_cyclegan.engine.cpu.slab_generator", "cuda_cyclegan.engine.model.reference"}
TO_REPORT = {"cuda_cyclegan.pipelines.report.codec", "cuda_cyclegan.pipelines.results.kept_report"}
WITH_A_MODEL = {
    *("cuda_cyclegan.engine.model.model_card", "cuda_cyclegan.engine.network.graph"),
    *("cuda_cyclegan.pipelines.report.report", "cuda_cyclegan.pipelines.study.translator"),
}
UNTIL_A_CARD_OPENS = """
from cuda_cyclegan.engine import devices
from cuda_cyclegan.engine.errors import DeviceUnavailableError
devices.choose_devices = lambda *_: (devices.Device("cuda", "fp16", ("fp16", "fp32")),)
def is_opened(*_): raise DeviceUnavailableError("here a card would open")
devices.open_generator = is_opened
"""


def loaded(
    *arguments: object, before: str = "", status: int = 0, watched: Collection[str] = WATCHED
) -> set[str]:
    """Return which watched modules are loaded after a command in a process of its own."""
    program = LOADED.format(before=before, watched={*watched})
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    ended, *found = done.stdout.splitlines()[-1].split()
    assert int(ended) == status, done.stderr
    return set(found)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return scan(tmp_path / "scans" / "a.nii.gz")


@pytest.fixture
def batch(tmp_path: Path) -> tuple[object, ...]:
    """Options of a batch, but for its inputs."""
    model = tiny_model(tmp_path / "model.safetensors")
    return "--model", model, "--output", tmp_path / "results", "--device", "cpu"


def test_help_and_version_load_none() -> None:
    """One after the other in one process, where what any of them loads stays loaded."""
    others = ["--version"], *([command, "--help"] for command in ("translate", "discover", "model"))
    before = f"""
from cuda_cyclegan.cli.app import app
for words in {others}:
    try: app(words)
    except SystemExit as end: assert end.code == 0
"""
    assert loaded("--help", before=before) == {"importlib.metadata"}, "of --version"


def test_no_other_command_is_loaded() -> None:
    program = (
        "import sys\nfrom cuda_cyclegan.cli.app import app\n"
        "try: app(['translate', '--help'])\nexcept SystemExit: pass\n"
        "print(*sorted(name for name in sys.modules if '.commands.' in name))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "cuda_cyclegan.cli.commands.translate"


def test_a_manifest_is_read_without_the_libraries_of_scans() -> None:
    program = (
        "import sys, cuda_cyclegan.pipelines.results.manifest\n"
        f"print(*sorted({WATCHED!r} & {{*sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == [], done.stderr


def test_discover_reads_nifti_without_the_libraries_of_other_formats(study: Path) -> None:
    assert loaded("discover", study) == TO_FIND


def test_files_beside_the_scans_are_reported_from_dicom_without_its_library(study: Path) -> None:
    (study.parent / "a.json").write_text("{}")
    (study.parent / "README").write_bytes(bytes(200))
    assert loaded("discover", study.parent) == TO_FIND


@pytest.mark.process
def test_dicom_loads_its_library(tmp_path: Path) -> None:
    Phantom().write(tmp_path / "scans")
    assert "pydicom" in loaded("discover", tmp_path / "scans")


@pytest.mark.process
def test_a_plan_opens_no_device(study: Path, batch: tuple[object, ...]) -> None:
    assert loaded("plan", study, *batch) == TO_PLAN


@pytest.mark.process
def test_the_cpu_takes_onnx_runtime(study: Path, batch: tuple[object, ...]) -> None:
    assert loaded("translate", study, *batch) == ON_THE_CPU


@pytest.mark.process
def test_modules_of_the_program_are_loaded_for_what_they_do(
    study: Path, batch: tuple[object, ...]
) -> None:
    """The records of these modules, 50 dataclasses, take longest to load."""
    watched = IN_PROCESSES | TO_VERIFY | TO_REPORT | WITH_A_MODEL
    assert loaded("discover", study, watched=watched) == set()
    assert loaded("plan", study, *batch, watched=watched) == WITH_A_MODEL
    assert loaded("translate", study, *batch, watched=watched) == WITH_A_MODEL | TO_REPORT


@pytest.mark.process
def test_a_card_does_not(study: Path, batch: tuple[object, ...]) -> None:
    """The study may by then be read so far that its result needs the program's version."""
    found = loaded("translate", study, *batch, before=UNTIL_A_CARD_OPENS, status=4)
    assert found - {"importlib.metadata"} == TO_PLAN - {"rich"}


@pytest.mark.process
def test_openvino_comes_without_its_converter(study: Path, batch: tuple[object, ...]) -> None:
    pays = "from cuda_cyclegan.engine.cpu import openvino_support as o; o.pays = lambda *_: True"
    found = loaded("translate", study, *batch, before=pays)
    assert found == {*TO_PLAN, "importlib.metadata", "onnx", "openvino"}


@pytest.mark.slow
def test_a_preview_takes_the_library_of_pictures(study: Path, batch: tuple[object, ...]) -> None:
    assert loaded("translate", study, *batch, "--preview") == {*ON_THE_CPU, "PIL", "numpy.ma"}


@pytest.mark.slow
def test_nrrd_takes_no_simpleitk(tmp_path: Path, batch: tuple[object, ...]) -> None:
    image = SimpleITK.GetImageFromArray(np.arange(4096, dtype=np.int16).reshape(16, 16, 16))
    SimpleITK.WriteImage(image, tmp_path / "a.nrrd")
    assert "SimpleITK" not in loaded("translate", tmp_path / "a.nrrd", *batch)


@pytest.mark.slow
def test_filling_starting_and_showing_a_queue_loads_little_besides_its_database(
    tmp_path: Path, batch: tuple[object, ...], study: Path
) -> None:
    *kept, _, _ = batch  # the device is the worker's
    queue = "--queue", tmp_path / "queue.db"
    made = {"importlib.metadata"}  # the first one records the program's version
    assert loaded("submit", study, *kept, *queue) == (TO_PLAN | QUEUE | made) - {"rich"}
    assert loaded("submit", study, *kept, *queue) == (TO_PLAN | QUEUE) - {"rich"}
    assert loaded("worker", "--until-empty", "--device", "cpu", *queue) == {"multiprocessing"}
    assert (tmp_path / "results" / study.name).exists()
    assert loaded("jobs", *queue) == {"rich", *QUEUE}
    assert loaded("jobs", "--watch", *queue) == {"rich", *QUEUE}  # no terminal


def test_checks_of_plans_take_no_library_of_their_own() -> None:
    """Checks are computed before a GPU's first result, and np.unique imports numpy.ma."""
    program = (
        "import sys\n"
        "from cuda_cyclegan.engine.compiler.kernels.checks import sampled_voxels\n"
        "from cuda_cyclegan.engine.compiler.steps import ConvShape\n"
        "cube, three, one = (16,) * 3, (3,) * 3, (1,) * 3\n"
        "shape = ConvShape(1, cube, 8, cube, 8, three, one, one, one, 'fp16')\n"
        "voxels = sampled_voxels(shape)\n"
        "print('numpy.ma' in sys.modules, (voxels[1:] > voxels[:-1]).all())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_nibabel_lacks_nothing_in_programs_that_import_it_themselves() -> None:
    program = (
        "import cuda_cyclegan.io.reading, nibabel, pydicom\n"
        "from cuda_cyclegan.io.formats.nibabel_alone import import_nibabel_alone\n"
        "import_nibabel_alone()\n"
        "assert nibabel.nifti1.have_dicom and pydicom.Dataset"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
def test_dicom_in_a_nifti_header_is_kept(
    tmp_path: Path, batch: tuple[object, ...], study: Path
) -> None:
    """nibabel would read it through pydicom, which it is loaded without."""
    content = b"\x10\x00\x10\x00PN\x04\x00A^B "
    header = nibabel.nifti1.Nifti1Header()
    header.extensions.append(nibabel.nifti1.Nifti1Extension(2, content))
    voxels = nibabel.load(study).get_fdata().astype(np.int16)
    nibabel.Nifti1Image(voxels, np.eye(4), header).to_filename(study)
    assert "pydicom" not in loaded("translate", study, *batch)
    made = nibabel.load(tmp_path / "results" / study.name)
    _, extension = made.header.extensions  # after the mark
    assert extension.content.rstrip(b"\0") == content
