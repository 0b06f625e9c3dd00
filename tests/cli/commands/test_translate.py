"""The translate command as a user or a script meets it: what it makes, and what it keeps."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.batch_world import bad_scans, scan, tiny_model
from support.translate_world import World, without_privileges

from cuda_cyclegan.engine.devices import choose_device


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class TestWhatIsMade:
    def test_the_output_mirrors_the_input(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        scan(world.inputs / "deep" / "er" / "b c.nii.gz")
        result = world.translate()
        assert result.exit_code == 0, result.output
        assert set(world.files()) == {"a.nii", "deep/er/b c.nii.gz"}
        assert "2 studies" in result.stdout
        assert "2 translated" in result.stdout

    def test_two_runs_make_the_same_bytes(self, world: World) -> None:
        scan(world.inputs / "a.nii.gz", seed=1)
        scan(world.inputs / "b.nii", seed=2)
        world.translate()
        first = world.files()
        assert world.translate("--overwrite").exit_code == 0
        assert world.files() == first

    def test_an_output_folder_inside_the_input_is_not_translated_again(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        world.output = world.inputs / "results"
        assert world.translate().exit_code == 0
        second = world.translate()
        assert second.exit_code == 0
        assert "1 study" in second.stdout
        assert set(world.files()) == {"a.nii"}

    def test_a_volume_of_a_4d_file_is_translated_when_chosen(self, world: World) -> None:
        scan(world.inputs / "a.nii", shape=(20, 18, 16, 2))
        assert world.translate().exit_code == 1
        assert world.translate("--volume", "1").exit_code == 0


class TestResume:
    def test_what_is_up_to_date_is_kept(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        world.translate()
        before = (world.output / "a.nii").stat()
        result = world.translate()
        assert result.exit_code == 0
        assert "1 up to date" in result.stdout
        assert (world.output / "a.nii").stat() == before

    @pytest.mark.parametrize(
        ("change", "options", "word"),
        [
            (lambda w: scan(w.inputs / "a.nii", seed=9), [], "the input changed"),
            (lambda w: tiny_model(w.model, seed=9), [], "the model changed"),
            (lambda _: None, ["--overlap", "0.5"], "the settings changed"),
            (lambda w: (w.output / "a.nii").unlink(), [], "its result was deleted"),
        ],
    )
    def test_what_changed_is_made_anew_and_says_so(
        self, world: World, change: Callable[[World], object], options: list[str], word: str
    ) -> None:
        scan(world.inputs / "a.nii", seed=1)
        scan(world.inputs / "b.nii", seed=2)
        world.translate()
        change(world)
        result = world.translate(*options)
        assert result.exit_code == 0
        assert word in result.stderr
        assert "redone" in result.stdout
        assert world.translate(*options).stdout.count("2 up to date") == 1

    def test_only_the_failed_are_tried_again(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        broken = world.inputs / "b.nii"
        broken.write_bytes(b"")
        assert world.translate().exit_code == 1
        scan(broken)
        result = world.translate()
        assert result.exit_code == 0
        assert "1 translated, 1 up to date" in result.stdout

    def test_a_foreign_file_is_never_destroyed_without_a_word(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        world.output.mkdir()
        (world.output / "a.nii").write_bytes(b"somebody's work")
        result = world.translate("--report", str(world.report))
        assert result.exit_code == 1
        assert world.files() == {"a.nii": b"somebody's work"}
        assert world.rows()["a.nii"]["class"] == "occupied"
        assert "--overwrite" in result.stderr
        assert world.translate("--overwrite").exit_code == 0
        assert world.files()["a.nii"] != b"somebody's work"

    def test_the_input_folder_as_output_destroys_nothing(self, world: World) -> None:
        before = scan(world.inputs / "a.nii").read_bytes()
        world.output = world.inputs
        assert world.translate("--overwrite").exit_code != 0
        assert (world.inputs / "a.nii").read_bytes() == before


class TestBadInput:
    def test_each_bad_study_fails_alone_with_its_class(self, world: World) -> None:
        expected = bad_scans(world.inputs)
        scan(world.inputs / "good.nii.gz")
        scan(world.inputs / "z" / "good.nii")
        (world.inputs / "z" / "loop").symlink_to(world.inputs)
        result = world.translate("--report", str(world.report))
        assert result.exit_code == 1
        assert "Traceback" not in result.output
        rows = world.rows()
        assert {name: row["class"] for name, row in rows.items() if row["class"]} == expected
        assert {name for name, row in rows.items() if row["status"] == "translated"} == {
            "good.nii.gz",
            "z/good.nii",
        }
        assert set(world.files()) == {"good.nii.gz", "z/good.nii"}
        for name in expected:
            reason = rows[name]["reason"]
            assert "\n" not in reason
            assert reason.endswith(".")
            assert f"failed: {name}: " in result.stderr

    def test_a_file_that_may_not_be_read_fails_alone(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        scan(world.inputs / "b.nii").chmod(0)
        result = world.run("--report", str(world.report), prefix=without_privileges())
        assert result.returncode == 1
        rows = world.rows()
        assert rows["a.nii"]["status"] == "translated"
        assert rows["b.nii"]["class"] == "unreadable"
        assert "may not be read by this user" in rows["b.nii"]["reason"]

    def test_what_is_no_file_is_skipped_without_waiting_for_it(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        os.mkfifo(world.inputs / "b.nii")
        result = world.translate("--report", str(world.report))
        assert result.exit_code == 0
        [skipped] = json.loads(world.report.read_text())["skipped"]
        assert "pipe" in skipped["reason"]

    def test_the_traceback_is_there_when_asked_for(self, world: World) -> None:
        (world.inputs / "a.nii").write_bytes(b"")
        assert "Traceback" not in world.translate().output
        assert "Traceback" in world.translate("--verbose").output

    def test_names_cannot_speak_to_the_terminal(self, world: World) -> None:
        scan(world.inputs / "[red]a\nb\x1b[31m\u202e.nii")
        (world.inputs / os.fsdecode(b"\xff[bold]\x1b[2J.nii")).touch()
        for options in ((), ("--dry-run",), ("--quiet",), ("--overwrite", "--verbose")):
            result = world.translate(*options)
            assert "\x1b" not in result.output
            assert "\u202e" not in result.output
            assert r"\udcff[bold]\x1b[2J.nii" in result.output
            if "--quiet" not in options:
                assert r"[red]a\nb\x1b[31m\u202e.nii" in result.stdout


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

    def test_a_subfolder_that_may_not_be_written_fails_its_study(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        scan(world.inputs / "sub" / "b.nii")
        (world.output / "sub").mkdir(parents=True, mode=0o555)
        result = world.run("--report", str(world.report), prefix=without_privileges())
        assert result.returncode == 1
        rows = world.rows()
        assert (rows["a.nii"]["status"], rows["sub/b.nii"]["class"]) == ("translated", "write")

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


class TestWords:
    def test_quiet_says_nothing_when_all_is_well(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        result = world.translate("--quiet")
        assert (result.exit_code, result.output) == (0, "")

    def test_quiet_still_tells_failures(self, world: World) -> None:
        (world.inputs / "a.nii").touch()
        scan(world.inputs / "b.nii")
        result = world.translate("--quiet")
        assert result.exit_code == 1
        [line] = result.output.splitlines()
        assert "failed a.nii: unreadable: " in line

    def test_auto_says_why_it_takes_the_cpu(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        [line] = [x for x in world.translate().stderr.splitlines() if x.startswith("Device: ")]
        assert re.search(r"^Device: CPU, .*\(no CUDA device is used: .+\)$", line)
        assert "no CUDA device" not in world.translate("--overwrite", "--device", "cpu").stderr

    def test_plain_progress_has_one_line_a_study_and_no_escape_codes(self, world: World) -> None:
        for name in "abc":
            scan(world.inputs / f"{name}.nii")
        result = world.run()
        assert "\x1b" not in result.stdout + result.stderr
        lines = [line for line in result.stderr.splitlines() if line.startswith("[")]
        assert [line.split(":")[0] for line in lines] == [
            "[1/3] translated a.nii",
            "[2/3] translated b.nii",
            "[3/3] translated c.nii",
        ]

    def test_a_dry_run_lists_everything_and_writes_nothing(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        world.translate()
        before = world.files()
        scan(world.inputs / "new.nii", shape=(20, 16, 16))
        (world.inputs / "broken.nii").touch()
        (world.inputs / "brain.mgz").touch()
        manifest = (world.output / FOLDER / "manifest.jsonl").read_bytes()
        result = world.translate("--dry-run", "--overlap", "0")
        assert result.exit_code == 1
        rows = {line.split()[0]: line for line in result.stdout.splitlines() if line.split()}
        assert re.search(r"new.nii\s+2\s.*translated", rows["new.nii"])
        assert re.search(r"a.nii\s+4\s.*redone: the settings changed", rows["a.nii"])
        assert re.search(r"broken.nii\s+failed", rows["broken.nii"])
        assert "would fail: broken.nii: unreadable: " in result.stdout
        assert f"skipped: {world.inputs / 'brain.mgz'}: " in result.stdout
        assert world.files() == before
        assert (world.output / FOLDER / "manifest.jsonl").read_bytes() == manifest

    def test_a_dry_run_of_a_new_output_makes_no_folder(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        assert world.translate("--dry-run").exit_code == 0
        assert not world.output.exists()

    def test_a_reader_that_goes_away_does_not_stop_the_batch(self, world: World) -> None:
        for name in "abc":
            scan(world.inputs / f"{name}.nii")
        reading, writing = os.pipe()
        os.close(reading)
        command = [*COMMAND, *world.arguments()]
        done = subprocess.run(command, stdout=writing, stderr=writing, check=False)
        os.close(writing)
        assert done.returncode == 0
        assert len(world.files()) == 3


def test_a_terminal_that_goes_away_does_not_stop_the_batch(world: World) -> None:
    for name in "abc":
        scan(world.inputs / f"{name}.nii")
    (world.inputs / "bad.nii").touch()
    terminal, end = os.openpty()
    command = [*COMMAND, *world.arguments("--report", str(world.report))]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=end, env=environment
    ) as process:
        os.close(end)
        os.read(terminal, 1)  # the bars have begun
        os.close(terminal)
    assert process.returncode == 1
    assert set(world.files()) == {"a.nii", "b.nii", "c.nii"}
    assert len(world.rows()) == 4


def test_help_and_version_import_nothing_heavy() -> None:
    heavy = (
        "'numpy', 'rich', 'onnx', 'onnxruntime', 'nibabel', 'SimpleITK', 'safetensors', 'isal', "
        "'pydicom'"
    )
    program = (
        "import sys\nfrom cuda_cyclegan.cli.app import app\n"
        "try: app(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code == 0\n"
        f"print(sorted({{{heavy}}} & {{*sys.modules}}))"
    )
    for arguments in (["--help"], ["translate", "--help"], ["discover", "--help"], ["--version"]):
        command = [sys.executable, "-c", program, *arguments]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert out.splitlines()[-1] == "[]"


def test_several_devices_make_the_same_files_as_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, name in enumerate("abcd"):
        scan(world.inputs / f"{name}.nii.gz", seed)
    assert world.translate().exit_code == 0
    alone = world.files()
    cpu = choose_device("cpu")
    pair = (cpu, replace(cpu, index=1))
    monkeypatch.setattr("cuda_cyclegan.pipelines.translate.choose_devices", lambda *_: pair)
    result = world.translate("--overwrite", "--report", str(world.report))
    assert result.exit_code == 0, result.output
    assert "4 translated" in result.stdout
    assert world.files() == alone
    assert json.loads(world.report.read_text())["use"]["devices"] == 2


class TestPlan:
    def test_it_is_the_dry_run(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        (world.inputs / "b.nii").write_bytes(b"garbage" * 100)
        planned = CliRunner().invoke(app, ["plan", *world.arguments()])
        dry = world.translate("--dry-run")
        assert planned.exit_code == dry.exit_code == 1
        assert planned.output == dry.output
        assert "would fail: b.nii: unreadable" in planned.output
        assert not world.output.exists()

    def test_seconds_are_known_once_a_batch_was_measured(
        self, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        scan(world.inputs / "a.nii")
        command = ["plan", *world.arguments("--overwrite")]
        assert "not known yet" in CliRunner().invoke(app, command).stdout
        assert world.translate().exit_code == 0
        told = CliRunner().invoke(app, command).stdout
        assert "not known yet" not in told
        assert re.search(r"Seconds in all: \d", told)

    def test_ram_is_at_least_that_of_the_arrays(self, world: World) -> None:
        scan(world.inputs / "a.nii", shape=(128, 128, 128))
        told = CliRunner().invoke(app, ["plan", *world.arguments()]).stdout
        found = re.search(r"a\.nii +\d+ +(\d+) MiB", told)
        assert found is not None
        assert 128**3 * (2 + 2) <= int(found[1]) * 2**20 <= 128**3 * 6

    def test_ram_is_what_a_run_asks_for(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A seam score keeps the network's own intensities."""
        scan(world.inputs / "a.nii", shape=(96, 96, 96))
        asked: list[int] = []
        acquire = WeightedSemaphore.acquire

        def heard(memory: WeightedSemaphore, amount: int = 1) -> bool:
            asked.append(amount)
            return acquire(memory, amount)

        monkeypatch.setattr(WeightedSemaphore, "acquire", heard)
        mebibytes: list[int] = []
        for extras in ((), ("--seam-score",)):
            told = (
                CliRunner().invoke(app, ["plan", *world.arguments("--overwrite", *extras)]).stdout
            )
            found = re.search(r"a\.nii +\d+ +(\d+) MiB", told)
            assert found is not None
            mebibytes.append(int(found[1]))
            asked.clear()
            assert world.translate("--overwrite", *extras).exit_code == 0
            assert abs(max(asked) - mebibytes[-1] * 2**20) <= 2**20
        assert mebibytes[1] > mebibytes[0]


def test_a_trace_is_written_whole_or_complained_about(world: World, tmp_path: Path) -> None:
    scan(world.inputs / "a.nii")
    trace = tmp_path / "trace.json"
    assert world.translate("--trace", str(trace)).exit_code == 0
    events = json.loads(trace.read_text())["traceEvents"]
    stages = [event["name"] for event in events if event["ph"] == "X"]
    assert set(stages) == {"read", "prepare", "infer", "blend", "finish", "write"}

    assert world.translate("--trace", str(tmp_path / "no" / "where.json")).exit_code == 2
    assert world.translate("--trace", str(trace), "--dry-run").exit_code == 2


def test_the_report_is_a_promise_to_scripts(world: World) -> None:
    scan(world.inputs / "a.nii")
    (world.inputs / "b.nii").touch()
    (world.inputs / "c.mgz").touch()
    (world.inputs / "d.txt").touch()
    world.translate("--report", str(world.report))
    report = json.loads(world.report.read_text())
    assert report["schema"] == "cuda-cyclegan/translate-report/1"
    assert {key: kind(value) for key, value in report.items()} == {
        "schema": "str",
        "program": {"name": "str", "version": "str"},
        "libraries": dict.fromkeys(
            ["python", "numpy", "onnxruntime", "SimpleITK", "nibabel", "pydicom"], "str"
        ),
        "machine": {"host": "str", "system": "str", "cores": "int", "memory_bytes": "int"},
        "device": "str",
        "model": {"name": "str", "path": "str", "sha256": "str"},
        "settings": {
            "patch": "list",
            "overlap": "float",
            "blend": "str",
            "precision": "str",
            "volume_index": "NoneType",
            "keep_private": "bool",
            "sha256": "str",
        },
        "output": "str",
        "started": "str",
        "seconds": "float",
        "runs": "int",
        "interrupted": "bool",
        "use": {
            **dict.fromkeys(["wall_seconds", "busy_seconds", "computing_seconds"], "float"),
            "devices": "int",
            **dict.fromkeys(["overlap", "computing_share"], "float"),
        },
        "totals": {
            **dict.fromkeys(
                ["studies", "translated", "up_to_date", "failed", "interrupted", "not_reached"],
                "int",
            ),
            "stages": STAGES,
            "voxels": "int",
            "voxels_per_second": "float",
            "tiles": "int",
            "peak_host_bytes": "int",
            "peak_counts_from": "str",
            "worst_seam_score": "NoneType",
        },
        "studies": "list",
        "skipped": "list",
        "ignored": "int",
    }
    translated, failed = report["studies"]
    assert kind(translated) == {
        **dict.fromkeys(["name", "source", "output", "status", "peak_counts_from"], "str"),
        **dict.fromkeys(
            ["class", "reason", "failed_in", "due", "preview", "seam_score"], "NoneType"
        ),
        **dict.fromkeys(["seconds", "voxels_per_second"], "float"),
        **dict.fromkeys(["voxels", "tiles", "peak_host_bytes"], "int"),
        "stages": STAGES,
        "when": dict.fromkeys(STAGES, "list"),
        "notes": "list",
    }
    assert (failed["class"], failed["failed_in"]) == ("unreadable", "read")
    assert sum(translated["stages"].values()) <= translated["seconds"]
    [skipped] = report["skipped"]
    assert skipped["path"].endswith("c.mgz")
    assert report["ignored"] == 1


STAGES = dict.fromkeys(["read", "prepare", "infer", "blend", "finish", "write"], "float")


def kind(value: object) -> object:
    """The types of a JSON value, objects field by field."""
    if isinstance(value, dict):
        return {key: kind(item) for key, item in value.items()}
    return type(value).__name__


def test_the_report_of_a_batch_that_goes_on_is_of_the_whole_batch(world: World) -> None:
    scan(world.inputs / "a.nii")
    world.translate("--report", str(world.report))
    first = world.rows()
    scan(world.inputs / "b.nii")
    done = world.translate("--report", str(world.report))
    assert "1 translated, 1 up to date" in done.stdout
    assert {name: row["status"] for name, row in world.rows().items()} == {
        "a.nii": "translated",
        "b.nii": "translated",
    }
    assert world.rows()["a.nii"] == first["a.nii"]
    world.translate("--report", str(world.report))
    report = json.loads(world.report.read_text())
    assert (report["totals"]["translated"], report["runs"]) == (2, 3)


def test_the_report_of_another_batch_is_kept_and_nothing_is_done(world: World) -> None:
    scan(world.inputs / "a.nii")
    world.translate("--report", str(world.report))
    before = world.report.read_bytes()
    scan(world.inputs / "b.nii")
    done = world.translate("--report", str(world.report), "--overlap", "0.5")
    assert done.exit_code == 2
    assert "is the report of another batch" in done.stderr
    assert (world.report.read_bytes(), set(world.files())) == (before, {"a.nii"})
    world.report.write_text("my notes")
    assert world.translate("--report", str(world.report)).exit_code == 2
    assert world.report.read_text() == "my notes"


def to_file(world: World, source: Path, target: Path, *options: str) -> Result:
    words = ["translate", source, "--model", world.model, "--output", target, *options]
    return CliRunner().invoke(app, list(map(str, words)))


def test_an_output_that_names_a_file_is_that_file(world: World, tmp_path: Path) -> None:
    """Also beside the scan, and from a folder that holds one study."""
    source = scan(world.inputs / "a.nii")
    world.translate()
    target = world.inputs / "b.nii.gz"
    done = to_file(world, source, target)
    assert done.exit_code == 0, done.stderr
    assert f"Result: {target}" in done.stdout
    assert gzip.decompress(target.read_bytes()) == (world.output / "a.nii").read_bytes()
    assert "1 up to date" in to_file(world, source, target).stdout
    other = tmp_path / "elsewhere" / "c.nii"
    scan(tmp_path / "one" / "deep" / "a.nii")
    assert to_file(world, tmp_path / "one", other).exit_code == 0
    assert other.read_bytes() == (world.output / "a.nii").read_bytes()


def test_a_file_as_output_holds_one_result_of_its_kind_and_never_the_scan(world: World) -> None:
    source = scan(world.inputs / "a.nii")
    before = source.read_bytes()
    for target, told in (
        (source, "is the scan itself"),
        (world.inputs / "x.nrrd", "must end in .nii or .nii.gz"),
    ):
        refused = to_file(world, source, target)
        assert (refused.exit_code, told in refused.stderr) == (2, True), refused.stderr
    scan(world.inputs / "b.nii")
    refused = to_file(world, world.inputs, world.inputs / "x.nii.gz")
    assert (refused.exit_code, "there are 2 studies" in refused.stderr) == (2, True)
    refused = to_file(world, source, world.inputs / "x.nii.gz", "--format", "dicom")
    assert (refused.exit_code, "is a folder" in refused.stderr) == (2, True)
    assert source.read_bytes() == before
    assert not (world.inputs / "x.nii.gz").exists()


def test_a_patch_that_no_memory_holds_is_refused_with_one_that_fits(world: World) -> None:
    scan(world.inputs / "a.nii")
    done = world.translate("--device", "cpu", "--patch", "8000,8000,8000")
    assert done.exit_code == 2
    assert re.search(
        r"8000x8000x8000 need \d+\.\d GiB of memory,\s+and \d+\.\d GiB are free; --patch "
        r"\d+,\d+,\d+ fits\.",
        " ".join(done.stderr.split()),
    )


def test_short_options_are_those_of_every_neighbour(world: World) -> None:
    scan(world.inputs / "a.nii")
    words = ["-i", world.inputs, "-o", world.output, "-m", world.model, "-d", "cpu"]
    done = CliRunner().invoke(app, ["translate", *map(str, words)])
    assert done.exit_code == 0, done.stderr
    assert set(world.files()) == {"a.nii"}
    nothing = CliRunner().invoke(app, ["plan", *map(str, words[2:])])
    assert (nothing.exit_code, "name scan files or folders" in nothing.stderr) == (2, True)


def test_a_plan_notes_scans_that_are_padded_to_a_patch(world: World) -> None:
    scan(world.inputs / "small.nii", shape=(10, 20, 24))
    scan(world.inputs / "whole.nii", shape=(16, 20, 24))
    told = CliRunner().invoke(app, ["plan", *world.arguments()]).stdout
    padded = "note: small.nii: smaller than a patch, padded from 10x20x24 to 16x20x24 voxels"
    assert padded in " ".join(told.split())
    assert told.count("padded") == 1


def test_a_report_on_standard_output_stands_there_alone(world: World) -> None:
    scan(world.inputs / "a.nii")
    done = world.translate("--report", "-")
    assert json.loads(done.stdout)["totals"]["translated"] == 1
    assert "1 study in " in done.stderr
    assert not Path("-").exists()
