"""The translate command's exit status, and one sentence for each failure."""

import re
import resource
import subprocess
import sys

import pytest
from support.batch_world import scan
from support.translate_world import World, one_sentence, without_privileges

from cuda_cyclegan.pipelines.results.manifest import Manifest


class TestStatus:
    @pytest.mark.parametrize(
        "options",
        [
            ("--overlap", "0.91"),
            ("--overlap", "nan"),
            ("--overlap", "-0.1"),
            ("--patch", "16,16"),
            ("--patch", "0,16,16"),
            ("--patch", "a,b,c"),
            ("--patch", "15,16,16"),
            ("--blend", "cubic"),
            ("--device", "tpu"),
            ("--device", "cuda:"),
            ("--precision", "fp8"),
            ("--device", "cpu", "--precision", "fp16"),
            ("--volume", "-1"),
            ("--report", "/no/such/folder/report.json"),
            ("--dry-run", "--report", "report.json"),
            ("--model", "/no/such/model"),
            ("--unknown",),
        ],
        ids=" ".join,
    )
    def test_wrong_usage_is_2_and_touches_nothing(
        self, world: World, options: tuple[str, ...]
    ) -> None:
        scan(world.inputs / "a.nii")
        result = world.translate(*options)
        assert result.exit_code == 2
        assert one_sentence(result)
        assert not world.output.exists()

    def test_no_study_is_3(self, world: World) -> None:
        (world.inputs / "notes.txt").write_text("hello")
        for options in ((), ("--dry-run",)):
            result = world.translate(*options)
            assert result.exit_code == 3
            assert "No study found" in one_sentence(result)
        assert not world.output.exists()

    @pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:0,1"])
    def test_an_absent_device_is_4(self, world: World, device: str) -> None:
        scan(world.inputs / "a.nii")
        result = world.translate("--device", device)
        assert result.exit_code == 4
        assert f"Device {device}" in one_sentence(result)

    def test_a_precision_that_only_an_absent_device_has_is_4(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        assert world.translate("--precision", "fp16").exit_code == 4

    def test_a_missing_library_is_4(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        program = (
            "import sys; sys.modules['onnxruntime'] = None\n"
            "from cuda_cyclegan.cli.app import main; main()"
        )
        command = [sys.executable, "-c", program, "translate", *world.arguments()]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 4
        assert "The library onnxruntime is missing" in result.stderr
        assert "Traceback" not in result.stderr

    def test_a_folder_in_use_by_another_run_is_2(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        with Manifest(world.output):
            result = world.translate()
        assert result.exit_code == 2
        assert "Another run is writing" in one_sentence(result)

    def test_an_output_folder_that_may_not_be_written_is_2(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        world.output.mkdir(mode=0o555)
        result = world.run(prefix=without_privileges())
        assert result.returncode == 2
        [line] = result.stderr.splitlines()
        assert re.search(r"^Error: .*results cannot be used \(Permission denied\); .*\.$", line)

    @pytest.mark.process
    def test_a_subfolder_that_may_not_be_written_fails_its_study(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        scan(world.inputs / "sub" / "b.nii")
        (world.output / "sub").mkdir(parents=True, mode=0o555)
        result = world.run("--report", str(world.report), prefix=without_privileges())
        assert result.returncode == 1
        rows = world.rows()
        assert (rows["a.nii"]["status"], rows["sub/b.nii"]["class"]) == ("translated", "write")

    @pytest.mark.process
    def test_a_full_disk_fails_the_study_and_leaves_no_part(self, world: World) -> None:
        scan(world.inputs / "a.nii", shape=(64, 64, 64))
        scan(world.inputs / "b.nii", shape=(16, 16, 16))

        def small_files() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        result = world.run("--report", str(world.report), preexec_fn=small_files)
        assert result.returncode == 1, result.stderr
        rows = world.rows()
        assert (rows["a.nii"]["class"], rows["b.nii"]["status"]) == ("write", "translated")
        assert set(world.files()) == {"b.nii"}
