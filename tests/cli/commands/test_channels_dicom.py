"""Studies whose channels are DICOM series."""

import json
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import pytest
from support.clinic import Clinic
from support.dicom_phantoms import Phantom

nibabel: Any = _nibabel


@pytest.fixture
def clinic(tmp_path: Path) -> Clinic:
    return Clinic(tmp_path)


class TestDicom:
    def ward(self, clinic: Clinic) -> None:
        """A T1 and a T2 of one frame of reference, and another T2 that belongs to none."""
        for number, text in ((1, "T1"), (2, "ax T2"), (3, "T2")):

            def named(data: Any, _: int, text: str = text, number: int = number) -> None:
                data.SeriesDescription = text
                if number == 3:
                    data.FrameOfReferenceUID = "1.2.9"

            phantom = Phantom("MR", number=number, series=f"1.2.3.{number}", seed=number)
            phantom.write(clinic.inputs / f"s{number}", named)

    def test_a_series_of_results_for_each_channel(self, tmp_path: Path) -> None:
        clinic = Clinic(tmp_path)
        for number in (1, 2):
            for suffix in ("T1w", "T2w"):
                clinic.file(number, suffix).unlink()
        self.ward(clinic)
        clinic.makes_two()
        rows = clinic.translate(status=1)
        names = sorted(rows)
        assert [rows[name]["status"] for name in names] == ["translated", "failed"]
        assert "channel T1 is missing" in rows[names[1]]["reason"]
        from support.dicom_phantoms import pydicom

        files = sorted(clinic.output.rglob("*.dcm"))
        found = [pydicom.dcmread(file) for file in files]
        assert {file.parent.name.rpartition("_")[2] for file in files} == {"CT", "PET"}
        uids = {each.SeriesInstanceUID for each in found}
        assert len(uids) == 2
        assert len({each.SeriesNumber for each in found}) == 2, "viewers list series by it"
        assert len({each.SOPInstanceUID for each in found}) == len(files) == 24
        reported = {each.SeriesDescription.partition(" (")[0] for each in found}
        assert reported == {"Synthetic CT", "Synthetic PET"}
        assert {each.FrameOfReferenceUID for each in found} == {"1.2.3.4.5.9"}
        for each in found:
            referred = [item.ReferencedSOPInstanceUID for item in each.SourceImageSequence]
            assert referred == [f"1.2.3.{number}.{each.InstanceNumber}" for number in (1, 2)]
        kept = clinic.translate(status=1)
        assert kept[names[0]]["status"] == "up to date"

    def test_discover_shows_of_each_series_what_becomes_of_it(self, tmp_path: Path) -> None:
        clinic = Clinic(tmp_path)
        for number in (1, 2):
            for suffix in ("T1w", "T2w"):
                clinic.file(number, suffix).unlink()
        self.ward(clinic)
        Phantom("MR", number=4, series="1.2.3.4").write(clinic.inputs / "s4")
        done = clinic.run("discover", str(clinic.inputs), "-m", str(clinic.model), "--json")
        reported = {each["number"]: each for each in json.loads(done.stdout)["series"]}
        verdicts = {number: each["verdict"] for number, each in reported.items()}
        assert verdicts == {1: "taken", 2: "taken", 3: "refused", 4: "skipped"}
        assert "channel T1 is missing" in reported[3]["reason"]
        assert "not recognised as channel T1 or T2" in reported[4]["reason"]
        shown = clinic.run("discover", str(clinic.inputs), "-m", str(clinic.model))
        assert "Found: 1 to translate, 1 rejected, 1 skipped" in shown.stdout

    def test_jobs_of_series(self, tmp_path: Path) -> None:
        clinic = Clinic(tmp_path)
        for number in (1, 2):
            for suffix in ("T1w", "T2w"):
                clinic.file(number, suffix).unlink()
        self.ward(clinic)
        clinic.translate("--format", "nifti", status=1)
        [wanted] = clinic.output.rglob("*.nii.gz")
        content = wanted.read_bytes()
        clinic.output = clinic.folder / "by-jobs"
        paths = [str(clinic.inputs), "-m", str(clinic.model), "-o", str(clinic.output)]
        assert clinic.run("submit", *paths, "--format", "nifti").exit_code == 1
        clinic.work()
        [made] = clinic.output.rglob("*.nii.gz")
        assert made.read_bytes() == content
