"""Formats through the whole command with a model that changes nothing: the same scan comes out."""

import json
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
import SimpleITK as _SimpleITK
from support.batch_world import identity_model
from support.each_pair import each_pair
from support.io_files import write_later
from support.result_marks import read_mark
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.io.volume import SyntheticMark
from cuda_cyclegan.pipelines.program import program_version

nibabel: Any = _nibabel
sitk: Any = _SimpleITK
Array = np.ndarray[Any, np.dtype[Any]]

SHAPE = (21, 18, 13)
OBLIQUE = np.array(
    [[0.9, 0.1, 0.0, -11], [-0.1, 0.9, 0.2, 7], [0.0, -0.2, 1.8, 30], [0, 0, 0, 1.0]]
)
TYPES = (np.uint8, np.int16, np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return identity_model(tmp_path_factory.mktemp("model") / "identity.safetensors")


def mark_of(model: Path) -> SyntheticMark:
    opened = load_model(model)
    name, source, target = opened.card.words
    return SyntheticMark(name, source, target, program_version(), opened.sha256[:12])


def noise(dtype: Any, shape: tuple[int, ...] = SHAPE) -> Array:
    return np.random.default_rng(3).integers(0, 256, shape).astype(dtype)


def translated(source: Path, model: Path, *options: str) -> Path:
    output = source.parent / "out"
    arguments = ["translate", source, "--model", model, "--output", output, *options]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return output / source.name


def nifti(voxels: Array) -> Any:
    """An oblique image whose qform and sform differ, with words in its header."""
    image = nibabel.Nifti1Image(voxels, OBLIQUE)
    image.set_sform(OBLIQUE, code=4)
    image.set_qform(np.diag([1.0, 1.0, 2.0, 1.0]), code=1)
    header = image.header
    header["descrip"] = b"TE 30, TR 2000; scanner 7"
    header["aux_file"] = b"notes.txt"
    header["intent_name"] = b"contrast"
    header.set_xyzt_units("mm", "sec")
    header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"kept as it is"))
    return image


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".hdr"])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_nifti_file_keeps_voxels_and_header(
    tmp_path: Path, model: Path, suffix: str, dtype: Any
) -> None:
    source = tmp_path / f"scan{suffix}"
    image = nifti(noise(dtype))
    kind = nibabel.Nifti1Pair if suffix == ".hdr" else nibabel.Nifti1Image
    kind(image.dataobj, None, image.header).to_filename(source)
    found, meant = nibabel.load(translated(source, model)), nibabel.load(source)
    same(found.dataobj.get_unscaled(), meant.dataobj.get_unscaled())
    assert read_mark(tmp_path / "out" / source.name) == mark_of(model)
    assert found.header["descrip"].tobytes().startswith(b"synthetic;cuda-cyclegan ")
    found.header["descrip"] = meant.header["descrip"]
    found.header["vox_offset"] = meant.header["vox_offset"]
    assert found.header == meant.header
    assert found.header.extensions[1:] == meant.header.extensions
    for form in ("get_sform", "get_qform"):
        (affine, code), (wanted, wanted_code) = (
            getattr(each.header, form)(coded=True) for each in (found, meant)
        )
        np.testing.assert_array_equal(affine, wanted)
        assert code == wanted_code > 0


def test_a_scaled_nifti_file_keeps_its_stored_numbers(tmp_path: Path, model: Path) -> None:
    source = tmp_path / "scaled.nii.gz"
    image = nifti(noise(np.int16))
    image.header.set_slope_inter(0.5, -1024)
    image.to_filename(source)
    found, meant = nibabel.load(translated(source, model)), nibabel.load(source)
    np.testing.assert_array_equal(found.dataobj.get_unscaled(), meant.dataobj.get_unscaled())
    assert (found.dataobj.slope, found.dataobj.inter) == (0.5, -1024)


def test_the_chosen_volume_of_a_4d_file_comes_out_alone(tmp_path: Path, model: Path) -> None:
    source = tmp_path / "series.nii.gz"
    voxels = noise(np.int16, (*SHAPE, 4))
    nifti(voxels).to_filename(source)
    found = nibabel.load(translated(source, model, "--volume", "2"))
    np.testing.assert_array_equal(np.asarray(found.dataobj), voxels[..., 2])
    np.testing.assert_array_equal(found.affine, nibabel.load(source).affine)


@pytest.mark.parametrize(
    ("suffix", "dtype", "compressed"),
    each_pair([".nrrd", ".nhdr", ".mha", ".mhd"], TYPES, [False, True]),
)
def test_an_itk_file_keeps_voxels_geometry_and_words(
    tmp_path: Path, model: Path, suffix: str, dtype: Any, compressed: bool
) -> None:
    source = tmp_path / f"scan{suffix}"
    image = sitk.GetImageFromArray(noise(dtype))
    turn = np.linalg.qr(OBLIQUE[:3, :3])[0]
    image.SetDirection(turn.ravel().tolist())
    image.SetSpacing((0.7, 0.8, 2.5))
    image.SetOrigin((-3.25, 40.5, 12.125))
    image.SetMetaData("Modality", "MET_MOD_MR" if suffix.startswith(".m") else "MR")
    sitk.WriteImage(image, str(source), compressed)
    target = translated(source, model)
    found, meant = sitk.ReadImage(str(target)), sitk.ReadImage(str(source))
    same(sitk.GetArrayViewFromImage(found), noise(dtype))
    assert found.GetPixelID() == meant.GetPixelID()
    for geometry in ("GetOrigin", "GetSpacing", "GetDirection"):
        there, wanted = (getattr(each, geometry)() for each in (found, meant))
        # NRRD holds spacing and direction as one product, which costs the last bit.
        np.testing.assert_allclose(there, wanted, rtol=1e-14, atol=1e-14)
    kept = dict(word for word in words(meant).items() if word != ("Modality", "MR"))
    said = words(found)
    assert said.pop("ITK_FileNotes").startswith("synthetic;cuda-cyclegan ")
    assert json.loads(said.pop("cuda_cyclegan"))["synthetic"] is True
    assert read_mark(target) == mark_of(model)
    assert said == kept  # a synthetic image is of no scanner's modality
    smaller = sum(file.stat().st_size for file in target.parent.glob("scan*")) < noise(dtype).nbytes
    assert not smaller or compressed


def same(found: Array, meant: Array) -> None:
    """The same voxel type and the same values to the last bit."""
    assert found.dtype == meant.dtype
    np.testing.assert_array_equal(found, meant)


def words(image: Any) -> dict[str, str]:
    return {key: image.GetMetaData(key) for key in image.GetMetaDataKeys()}


def test_two_scans_with_one_result_are_both_refused_and_stay_so(
    tmp_path: Path, model: Path
) -> None:
    """The name of the result is that of one of the scans, which takes it for no other."""
    (tmp_path / "in").mkdir()
    for name in ("a.mha", "a.nii.gz", "b.mha"):
        sitk.WriteImage(sitk.GetImageFromArray(noise(np.int16)), str(tmp_path / "in" / name))
    paths = [tmp_path / "in", "--model", model, "--output", tmp_path / "out", "--format", "nifti"]
    report = tmp_path / "report.json"
    words = [
        f"{one}: occupied: its result would overwrite that of {other}; move one away"
        for one, other in (("a.mha", "a.nii.gz"), ("a.nii.gz", "a.mha"))
    ]
    planned = CliRunner().invoke(app, ["plan", *map(str, paths)])
    assert planned.exit_code == 0
    assert [line for line in planned.stdout.splitlines() if "would fail: " in line] == [
        f"would fail: {each}" for each in words
    ]
    for expected in ("translated", "up to date"):
        arguments = ["translate", *map(str, paths), "--report", str(report)]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 1
        assert [line for line in result.stderr.splitlines() if line.startswith("failed: ")] == [
            f"failed: {each}" for each in words
        ]
        assert "There is no record of the files in" not in result.stderr
        assert f"1 {expected}, 2 failed" in result.stdout
        rows = json.loads(report.read_text())["studies"]
        assert [(row["name"], Path(row["source"]).name, row["status"]) for row in rows] == [
            ("a.mha", "a.mha", "failed"),
            ("a.nii.gz", "a.nii.gz", "failed"),
            ("b.nii.gz", "b.mha", "translated"),
        ]
    assert [path.name for path in (tmp_path / "out").glob("*.nii*")] == ["b.nii.gz"]


@pytest.mark.parametrize("suffix", [".nhdr", ".mhd"])
def test_each_file_of_a_list_of_voxels_is_an_input(
    tmp_path: Path, model: Path, suffix: str
) -> None:
    """The manifest records its content, and a change of it makes the result again."""
    folder = tmp_path / "in"
    folder.mkdir()
    voxels = noise(np.int16)
    names = [f"{at}.raw" for at in range(voxels.shape[0])]
    for name, part in zip(names, voxels, strict=True):
        (folder / name).write_bytes(part.astype("<i2").tobytes())
    sizes, listed = " ".join(map(str, voxels.shape[::-1])), "\n".join(["LIST", *names])
    heads = {
        ".nhdr": f"NRRD0004\ntype: short\ndimension: 3\nsizes: {sizes}\nendian: little\n"
        f"encoding: raw\ndata file: {listed}\n",
        ".mhd": f"NDims = 3\nDimSize = {sizes}\nElementType = MET_SHORT\n"
        f"ElementDataFile = {listed}\n",
    }
    (folder / f"scan{suffix}").write_text(heads[suffix])
    command = ["translate", str(folder), "--model", str(model), "--output", str(tmp_path / "out")]

    def run() -> str:
        result = CliRunner().invoke(app, [*command, "--device", "cpu"])
        assert result.exit_code == 0, result.output
        return result.output

    run()
    target = tmp_path / "out" / f"scan{suffix}"
    same(sitk.GetArrayFromImage(sitk.ReadImage(str(target))), voxels)
    [record] = tmp_path.rglob("manifest.jsonl")
    manifest = record.read_text()
    assert all(f'"{name}"' in manifest for name in names)
    assert "1 up to date" in run()
    write_later(folder / names[2], (voxels[2] + 1).astype("<i2").tobytes())
    assert "the input changed" in run()
    voxels[2] += 1
    same(sitk.GetArrayFromImage(sitk.ReadImage(str(target))), voxels)


AS = {"nrrd": ".nrrd", "mha": ".mha"}
"""Suffix of each value of --format."""
STORED: dict[str, tuple[Any, float, float, str]] = {
    "plain": (np.int16, 1.0, 0.0, "int16"),
    "bytes": (np.uint8, 1.0, 0.0, "uint8"),
    "floats": (np.float32, 1.0, 0.0, "float32"),
    "CT": (np.uint8, 1.0, -1024.0, "int16"),
    "CT of 16 bits": (np.uint16, 1.0, -1024.0, "int32"),
    "a scale": (np.int16, 0.25, -7.5, "float32"),
    "scaled doubles": (np.float64, 2.0, 1.0, "float64"),
}
"""Voxel type, slope and intercept of a scan, and the voxel type of a result without a scale."""


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("as_", AS)
def test_a_nifti_file_becomes_one_of_itk(tmp_path: Path, model: Path, as_: str, name: str) -> None:
    """SimpleITK reads the same values on the same grid from both."""
    dtype, slope, intercept, expected = STORED[name]
    turn = np.linalg.qr(OBLIQUE[:3, :3])[0]
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = turn * (0.7, 0.8, 2.5), (-3.25, 40.5, 12.125)
    image = nibabel.Nifti1Image(noise(dtype), affine)
    image.header.set_slope_inter(slope, intercept)
    source = tmp_path / "in" / "sub.1" / "scan.nii.gz"
    source.parent.mkdir(parents=True)
    image.to_filename(source)
    arguments = ["translate", source.parent, "--model", model, "--output", tmp_path / "out"]
    report = tmp_path / "report.json"
    words = [*map(str, arguments), "--format", as_]
    done = CliRunner().invoke(app, [*words, "--report", str(report)])
    assert done.exit_code == 0, done.output
    target = tmp_path / "out" / f"scan{AS[as_]}"
    found, meant = sitk.ReadImage(str(target)), sitk.ReadImage(str(source))
    voxels = sitk.GetArrayFromImage(found)
    assert voxels.dtype == expected
    np.testing.assert_allclose(voxels, sitk.GetArrayFromImage(meant), rtol=1e-6, atol=1e-4)
    for geometry in ("GetOrigin", "GetSpacing", "GetDirection"):
        there, wanted = (getattr(each, geometry)() for each in (found, meant))
        np.testing.assert_allclose(there, wanted, rtol=1e-5, atol=1e-6)
    assert read_mark(target) == mark_of(model)
    [row] = json.loads(report.read_text())["studies"]
    assert (row["name"], row["status"]) == (f"scan{AS[as_]}", "translated")
    assert "1 up to date" in CliRunner().invoke(app, words).output


@pytest.mark.parametrize("as_", AS)
@pytest.mark.parametrize("suffix", [".nii", ".hdr", ".nrrd", ".nhdr", ".mha", ".mhd"])
def test_a_file_that_has_the_format_keeps_its_name_and_others_get_it(
    tmp_path: Path, model: Path, suffix: str, as_: str
) -> None:
    source = tmp_path / "in" / f"a.b{suffix}"
    source.parent.mkdir()
    image = sitk.GetImageFromArray(noise(np.int16))
    image.SetSpacing((0.7, 0.8, 2.5))
    image.SetOrigin((-3.25, 40.5, 12.125))
    sitk.WriteImage(image, str(source))
    has_it = suffix in {"nrrd": (".nrrd", ".nhdr"), "mha": (".mha", ".mhd")}[as_]
    arguments = [source.parent, "--model", model, "--output", tmp_path / "out", "--format", as_]
    done = CliRunner().invoke(app, ["translate", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    found = sitk.ReadImage(str(tmp_path / "out" / f"a.b{suffix if has_it else AS[as_]}"))
    same(sitk.GetArrayViewFromImage(found), noise(np.int16))
    assert np.allclose(found.GetSpacing(), image.GetSpacing())
    assert np.allclose(found.GetOrigin(), image.GetOrigin())


@pytest.mark.parametrize("suffix", AS.values())
def test_a_named_file_says_the_format(tmp_path: Path, model: Path, suffix: str) -> None:
    source, target = tmp_path / "a.nii.gz", tmp_path / f"b{suffix}"
    nifti(noise(np.int16)).to_filename(source)
    arguments = ["translate", source, "--model", model, "--output", target]
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    same(sitk.GetArrayFromImage(sitk.ReadImage(str(target))), noise(np.int16).T)
    assert read_mark(target) == mark_of(model)
