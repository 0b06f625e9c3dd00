"""Acquisitions in one series: which of them are volumes of their own, and what their notes say."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_judges import conformance_errors
from support.dicom_phantoms import STORED, Phantom, renamed, set_position
from support.dicom_traps import CT, MR, Trap, both, check, edited, findings, named
from support.tiers import examples

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.dicom.frames import Contrast, Frame, Moment, Technique
from cuda_cyclegan.io.dicom.grouping import parts_of
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Derivation
from cuda_cyclegan.io.writing import write

pydicom: Any = _pydicom
LONG_CT, LONG_MR = replace(CT, slices=24), replace(MR, slices=24)
PARAMETERS: dict[str, tuple[Any, Any]] = {
    "KVP": ("80", "140"),
    "ConvolutionKernel": ("B30f", "B70f"),
    "InversionTime": ("400", "2500"),
    "FlipAngle": ("3", "20"),
    "ContrastBolusAgent": ("", "Gd for Doe"),
    "DiffusionBValue": (0.0, 1000.0),
    "SeriesNumber": (3, 4),
    "AcquisitionTime": ("101300", "103100"),
}
WORDS = {
    "KVP": "tube voltage 80 kV",
    "ConvolutionKernel": "kernel B30f",
    "InversionTime": "inversion time 400 ms",
    "FlipAngle": "flip angle 3 degrees",
    "ContrastBolusAgent": "contrast agent 1",
    "DiffusionBValue": "b-value 0",
    "SeriesNumber": "series number 3",
    "AcquisitionTime": "acquisition period 1",
}


def differing(keyword: str, at: Callable[[int], int]) -> Callable[[Any, int], None]:
    return lambda data, slice_: named(data, **{keyword: PARAMETERS[keyword][at(slice_)]})


@pytest.mark.parametrize("keyword", PARAMETERS)
def test_two_complete_stacks_are_two_volumes_with_names(tmp_path: Path, keyword: str) -> None:
    edited(differing(keyword, lambda at: at % 2), LONG_MR)(tmp_path)
    series = discover([tmp_path], None).series
    assert [row.verdict for row in series] == ["taken", "taken"]
    assert [row.spacing[2] for row in series] == [4.0, 4.0]
    assert series[0].kind == WORDS[keyword]
    assert "Doe" not in findings(discover([tmp_path], None))


@pytest.mark.parametrize("keyword", PARAMETERS)
def test_slabs_of_one_stack_are_one_volume_with_a_note(tmp_path: Path, keyword: str) -> None:
    edited(differing(keyword, lambda at: at // 6 % 2), LONG_MR)(tmp_path)
    [row] = discover([tmp_path], None).series
    assert (row.verdict, row.extents[2]) == ("taken", 24)
    [note] = row.notes
    words = re.sub(r" \S*\d.*| B30f", "", WORDS[keyword])
    assert note.startswith(f"its images differ in {words} (")
    assert note.endswith("; they are treated as one volume")


def again(keyword: str, phantom: Phantom) -> Callable[[Path], None]:
    """The same stack twice, once with each value."""

    def second(data: Any, _: int) -> None:
        renamed(data)
        named(data, **{keyword: PARAMETERS[keyword][1]})

    def build(folder: Path) -> None:
        phantom.write(folder, differing(keyword, lambda _: 0))
        phantom.write(folder, second, prefix="b")

    return build


@pytest.mark.parametrize(
    "keyword", [name for name in PARAMETERS if name not in ("DiffusionBValue", "AcquisitionTime")]
)
def test_stacks_at_the_same_places_are_volumes_of_their_own(tmp_path: Path, keyword: str) -> None:
    again(keyword, MR)(tmp_path)
    series = discover([tmp_path], None).series
    assert [row.verdict for row in series] == ["taken", "taken"]
    assert WORDS[keyword] in {row.kind for row in series}


def test_b_values_at_the_same_places_are_volumes_of_one_series(tmp_path: Path) -> None:
    again("DiffusionBValue", MR)(tmp_path)
    [row] = discover([tmp_path], None).series
    assert (len(row.volumes), row.notes) == (2, ())


def half_a_spacing_on(numbers_go_on: bool) -> Callable[[Path], None]:
    """A second acquisition of slices that are as thick as they lie apart."""

    def first(data: Any, _: int) -> None:
        data.SliceThickness = 2

    def second(data: Any, at: int) -> None:
        first(data, at)
        renamed(data)
        data.InstanceNumber += 12 * numbers_go_on
        x, y, z = data.ImagePositionPatient
        set_position(data, (x, y, z + 1.0))

    def build(folder: Path) -> None:
        MR.write(folder, first)
        MR.write(folder, second, prefix="b")

    return build


def in_passes(data: Any, at: int) -> None:
    """Every other slice in a second pass, as of a scan in two concatenations."""
    minutes = 13 + 4 * (at % 2)
    named(data, AcquisitionNumber=1 + at % 2, AcquisitionTime=f"10{minutes}00")
    named(data, SliceThickness=2, InstanceNumber=1 + at // 2 + 6 * (at % 2))


def fed(data: Any, at: int) -> None:
    """An acquisition for each position of the table."""
    named(data, AcquisitionNumber=1 + at // 4, AcquisitionTime=f"1013{at // 4:02}")


def _other_kernel(data: Any, _: int) -> None:
    renamed(data)
    named(data, ConvolutionKernel="B70f")


ACQUISITIONS: dict[str, Trap] = {
    "half a spacing on, numbers go on": Trap(
        half_a_spacing_on(True), "taken taken", "", r"from 10.00 mm on(.|\n)*from 11.00 mm on"
    ),
    "half a spacing on, equal numbers": Trap(
        half_a_spacing_on(False), "taken taken", "", "from 10.00 mm on"
    ),
    "passes": Trap(
        edited(in_passes), words=r"acquisition number \(1, 2\); they are treated as one volume"
    ),
    "passes, of which the second has lost its first slice": Trap(
        both(edited(in_passes), lambda folder: (folder / "im001").unlink()),
        "refused",
        "",
        "1 of 12 slices are missing",
    ),
    "table feed": Trap(
        edited(fed), words=r"acquisition number \(1, 2, 3\); they are treated as one volume"
    ),
    "modulated": Trap(
        edited(lambda data, at: named(data, KVP=100 + at), CT),
        words=r"tube voltage \(12 values, 100 to 111 kV\); they are treated as one",
    ),
    "voltages in turn, too few slices": Trap(
        edited(differing("KVP", lambda at: at % 2)),
        "refused",
        "",
        r"tube voltage \(80, 140 kV\); lower setting min-slices to treat them as 2 volumes",
    ),
    "components in turn": Trap(
        edited(
            lambda data, at: named(data, ImageType=["ORIGINAL", "PRIMARY", "MP"[at % 2]]), LONG_MR
        ),
        "taken taken",
        "",
        "None magnitude .*\nNone phase",
    ),
    "components in turn, too few slices": Trap(
        edited(lambda data, at: named(data, ImageType=["ORIGINAL", "PRIMARY", "PM"[at % 2]])),
        "refused",
        "",
        r"what they show \(phase, magnitude\); lower setting min-slices to treat them as 2 "
        r"volumes  $",
    ),
    "two parameters": Trap(
        both(
            lambda folder: edited(differing("KVP", lambda at: at % 2), LONG_CT)(folder),
            lambda folder: again("ConvolutionKernel", replace(CT, series="1.2.3.9"))(folder / "b"),
        ),
        "taken taken taken taken",
    ),
    "kernels of other extents": Trap(
        both(
            lambda folder: CT.write(folder, lambda data, _: named(data, ConvolutionKernel="B30f")),
            lambda folder: replace(LONG_CT, origin=(-30, -20, 20)).write(
                folder,
                _other_kernel,
                prefix="b",
            ),
        ),
        "taken taken",
        "",
        "kernel B70f",
    ),
    "a slice missing of modulated ones": Trap(
        both(
            edited(lambda data, at: named(data, KVP=100 + at), CT),
            lambda folder: (folder / "im005").unlink(),
        ),
        "refused",
        "",
        "1 of 12 slices are missing",
    ),
}


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_outcome_of_a_folder(tmp_path: Path, name: str) -> None:
    ACQUISITIONS[name].build(tmp_path)
    check(discover([tmp_path], None), ACQUISITIONS[name])


GE = [(0, "", "magnitude"), (1, "", "phase"), (2, "", "real part"), (3, "", "imaginary part")]


@pytest.mark.parametrize("implicit", [False, True])
def test_components_by_the_elements_of_a_maker_are_apart(tmp_path: Path, implicit: bool) -> None:
    for value, *_ in GE:
        write_ge(tmp_path, value, implicit=implicit)
    series = discover([tmp_path], None).series
    assert [row.kind for row in series] == [shown for *_, shown in GE]
    assert {row.verdict for row in series} == {"taken"}


def write_ge(folder: Path, value: int, *, implicit: bool) -> None:
    """A stack whose component GE's private element alone tells."""

    def edit(data: Any, _: int) -> None:
        renamed(data)
        data.Manufacturer, data.ImageType = "GE MEDICAL SYSTEMS", ["ORIGINAL", "PRIMARY", "OTHER"]
        data.private_block(0x0043, "GEMS_PARM_01", create=True).add_new(0x2F, "SS", value)
        if implicit:
            data.file_meta.TransferSyntaxUID = pydicom.uid.ImplicitVRLittleEndian

    MR.write(folder, edit, prefix=f"{value}-")


@pytest.mark.parametrize("kind", ["SW_{}_FFE", "{}_SE", "{}"])
def test_components_in_image_types_of_makers_are_named(tmp_path: Path, kind: str) -> None:
    for letter in "MPRI":

        def edit(data: Any, _: int, letter: str = letter) -> None:
            renamed(data)
            data.ImageType = ["ORIGINAL", "PRIMARY", kind.format(letter)]

        MR.write(tmp_path, edit, prefix=letter)
    kinds = {row.kind for row in discover([tmp_path], None).series}
    assert kinds == {"magnitude", "phase", "real part", "imaginary part"}


def write_components(path: Path, *components: str, in_turn: bool = False) -> None:
    """An enhanced object of 24 places whose frames tell their component, and MIXED for all."""
    times = 1 if in_turn else len(components)
    write_enhanced(LONG_MR, path, times=times)
    data = pydicom.dcmread(path)
    data.ComplexImageComponent = "MIXED"
    for at, groups in enumerate(data.PerFrameFunctionalGroupsSequence):
        kind = pydicom.Dataset()
        kind.FrameType = ["ORIGINAL", "PRIMARY", "OTHER", "NONE"]
        which = at if in_turn else at // 24
        kind.ComplexImageComponent = components[which % len(components)]
        groups.MRImageFrameTypeSequence = [kind]
        del groups.FrameContentSequence[0].TemporalPositionIndex
    data.save_as(path)


@pytest.mark.parametrize("in_turn", [False, True])
def test_components_of_an_enhanced_object_are_apart(tmp_path: Path, in_turn: bool) -> None:
    write_components(tmp_path / "one", "PHASE", "MAGNITUDE", in_turn=in_turn)
    series = discover([tmp_path], None).series
    assert sorted(row.kind for row in series) == ["magnitude", "phase"]
    assert {row.verdict for row in series} == {"taken"}


def test_one_component_alone_is_named(tmp_path: Path) -> None:
    write_components(tmp_path / "one", "PHASE")
    [row] = discover([tmp_path], None).series
    assert row.kind == "phase"


@pytest.mark.parametrize("thickness", [2.0, 6.0])
def test_interleaved_stacks_are_one_volume_unless_each_leaves_no_gap(
    tmp_path: Path, thickness: float
) -> None:
    write_enhanced(LONG_MR, tmp_path / "one")
    data = pydicom.dcmread(tmp_path / "one")
    [shared] = data.SharedFunctionalGroupsSequence
    shared.PixelMeasuresSequence[0].SliceThickness = thickness
    frames = sorted(
        enumerate(data.PerFrameFunctionalGroupsSequence), key=lambda frame: frame[0] % 3
    )
    for at, groups in frames:
        groups.FrameContentSequence[0].StackID = str(1 + at % 3)
    data.PerFrameFunctionalGroupsSequence = [groups for _, groups in frames]
    data.save_as(tmp_path / "one")
    series = discover([tmp_path], None).series
    if thickness == 2:
        [row] = series
        assert (row.verdict, row.extents[2], row.spacing[2]) == ("taken", 24, 2.0)
        assert row.notes == (
            "its images differ in stack (1, 2, 3); they are treated as one volume",
        )
    else:
        assert [row.extents[2] for row in series] == [8, 8, 8]


def test_stacks_one_above_the_other_stay_apart(tmp_path: Path) -> None:
    write_enhanced(LONG_MR, tmp_path / "one")
    data = pydicom.dcmread(tmp_path / "one")
    for at, groups in enumerate(data.PerFrameFunctionalGroupsSequence):
        groups.FrameContentSequence[0].StackID = str(1 + at // 12)
    data.save_as(tmp_path / "one")
    kinds = [row.kind for row in discover([tmp_path], None, Choice(fewest_slices=2)).series]
    assert kinds == ["stack 1", "stack 2"]


TO_MR = Derivation("t1-to-t2", "T1", "T2", "0.1.0", "f" * 64, STORED)
TO_CT = replace(TO_MR, model="t1-to-ct", target="CT")


def test_results_of_single_images_say_which_component_they_show(tmp_path: Path) -> None:
    write_ge(tmp_path / "in", 1, implicit=False)
    [study] = discover([tmp_path / "in"], None).studies
    write(read(study), tmp_path / "mr", TO_MR)
    write(read(study), tmp_path / "ct", TO_CT)
    [row] = discover([tmp_path / "mr"], None).series
    assert row.kind == "phase"
    [result, *_] = sorted((tmp_path / "ct").iterdir())
    assert "PHASE" not in pydicom.dcmread(result).ImageType
    [result, *_] = sorted((tmp_path / "mr").iterdir())
    [source, *_] = sorted((tmp_path / "in").iterdir())
    assert conformance_errors(result) <= conformance_errors(source)


def test_enhanced_results_say_which_component_they_show(tmp_path: Path) -> None:
    write_components(tmp_path / "in" / "one", "PHASE", "MAGNITUDE")
    for at, study in enumerate(discover([tmp_path / "in"], None).studies):
        write(read(study), tmp_path / str(at), TO_MR)
        [path] = (tmp_path / str(at)).iterdir()
        made = pydicom.dcmread(path)
        [shared] = made.SharedFunctionalGroupsSequence
        found = made.ComplexImageComponent
        assert found == shared.MRImageFrameTypeSequence[0].ComplexImageComponent
        assert found == ("PHASE", "MAGNITUDE")[at]


def frames_of(values: list[int], passes: list[int]) -> list[Frame]:
    """A stack whose slices have these tube voltages and acquisition numbers."""
    return [
        Frame(
            file=Path(f"im{at}"),
            number=0,
            instance=f"1.2.{at}",
            rows=4,
            columns=4,
            spacing=(1.0, 1.0),
            orientation=(1.0, 0.0, 0.0, 0.0, 1.0, 0.0),
            position=(0.0, 0.0, 2.0 * at),
            reference="1.9",
            contrast=Contrast("CT", ("AXIAL",), 0.0),
            moment=Moment(0.0, 0.0, float(number), ()),
            image=float(at),
            technique=Technique(voltage=float(value), thickness=2.0),
        )
        for at, (value, number) in enumerate(zip(values, passes, strict=True))
    ]


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_each_image_is_in_one_part_whatever_the_values(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 24))
    values, passes = (
        data.draw(st.lists(st.integers(80, 82), min_size=count, max_size=count)) for _ in range(2)
    )
    parts = parts_of(frames_of(values, passes), 2)
    found = sorted(frame.image for part in parts for frame in part.frames)
    assert found == [float(at) for at in range(count)]
    if len(parts) > 1:  # each is complete, and has one value
        assert len(parts) == len(set(values))
        for part in parts:
            assert len({frame.technique.voltage for frame in part.frames}) == 1
            numbers = sorted(frame.image for frame in part.frames)
            steps = {after - before for before, after in pairwise(numbers)}
            assert len(steps) == 1
    elif len(set(values)) > 1:
        assert parts[0].trouble or "tube voltage" in parts[0].notes[0]


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(2, 4), st.integers(3, 8), st.booleans())
def test_values_in_turn_are_volumes_and_in_slabs_they_are_one(
    kinds: int, slices: int, in_turn: bool
) -> None:
    at = range(kinds * slices)
    values = [80 + (one % kinds if in_turn else one // slices) for one in at]
    parts = parts_of(frames_of(values, [1] * len(values)), 3)
    assert len(parts) == (kinds if in_turn else 1)
