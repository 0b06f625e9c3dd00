"""Messages of the translate command, and the streams they go to."""

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.batch_world import SHAPE, scan, stored
from support.processes import started
from support.translate_world import COMMAND, World


class TestWords:
    def test_quiet_says_nothing_when_all_is_well(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        result = world.translate("--quiet")
        assert (result.exit_code, result.output) == (0, "")

    def test_quiet_still_shows_failures(self, world: World) -> None:
        (world.inputs / "a.nii").touch()
        scan(world.inputs / "b.nii")
        result = world.translate("--quiet")
        assert result.exit_code == 1
        [line] = result.output.splitlines()
        assert "failed a.nii: unreadable: " in line

    def test_studies_that_failed_for_one_reason_share_a_line(self, world: World) -> None:
        for name in "abcde":
            stored(world.inputs / f"{name}.nii", np.full(SHAPE, np.nan, np.float32))
        (world.inputs / "f.nii").touch()
        last = [x for x in world.translate().output.splitlines() if x.startswith("failed: ")]
        assert [line.split(": ")[1] for line in last] == ["5 studies, a.nii to e.nii", "f.nii"]

    def test_auto_says_once_why_it_takes_the_cpu(
        self, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        scan(world.inputs / "a.nii")
        [line] = [x for x in world.translate().stderr.splitlines() if x.startswith("Device: ")]
        assert re.search(r"^Device: CPU, .*\(no CUDA device is used: .+\)$", line)
        for options in (("--device", "cpu"), (), ("--dry-run",)):
            again = world.translate("--overwrite", *options)
            assert "no CUDA device" not in again.output
            assert "--dry-run" in options or "Device: CPU, " in again.stderr

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
        manifest = world.manifest()
        result = world.translate("--dry-run", "--overlap", "0")
        assert result.exit_code == 0
        rows = {line.split()[0]: line for line in result.stdout.splitlines() if line.split()}
        assert re.search(r"new.nii\s+2\s.*to translate", rows["new.nii"])
        assert re.search(r"a.nii\s+4\s.*redone: the settings changed", rows["a.nii"])
        assert re.search(r"broken.nii\s+failed", rows["broken.nii"])
        assert "would fail: broken.nii: unreadable: " in result.stdout
        assert f"skipped: {world.inputs / 'brain.mgz'}: " in result.stdout
        assert world.files() == before
        assert world.manifest() == manifest

    def test_a_dry_run_of_a_new_output_makes_no_folder(self, world: World) -> None:
        scan(world.inputs / "a.nii")
        assert world.translate("--dry-run").exit_code == 0
        assert not world.output.exists()

    @pytest.mark.process
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


@pytest.mark.process
def test_a_terminal_that_goes_away_does_not_stop_the_batch(world: World) -> None:
    for name in "abc":
        scan(world.inputs / f"{name}.nii")
    (world.inputs / "bad.nii").touch()
    terminal, end = os.openpty()
    command = [*COMMAND, *world.arguments("--report", str(world.report))]
    environment = {**os.environ, "TERM": "xterm"}
    with started(command, stdout=subprocess.DEVNULL, stderr=end, env=environment) as process:
        os.close(end)
        os.read(terminal, 1)  # the bars have begun
        os.close(terminal)
        assert process.wait() == 1
    assert set(world.files()) == {"a.nii", "b.nii", "c.nii"}
    assert len(world.rows()) == 4
