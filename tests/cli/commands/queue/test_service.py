"""Units of systemd: what they run, and that systemd accepts them."""

import subprocess
from pathlib import Path

import pytest
from support.dicom_judges import judge
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.cli.errors import Exit
from cuda_cyclegan.cli.render.systemd_units import quoted

WORDS = {
    "worker": ["--device", "cpu"],
    "watch": ["--", "/incoming", "--model", "/m.safetensors", "--output", "/my results"],
    "node": [],
    "summary": ["--", "--since", "yesterday", "--html", "/srv/%Y-%m-%d.html"],
}


def install(*words: str) -> Result:
    return CliRunner().invoke(app, ["service", "install", *words])


def units(folder: Path, kind: str, *options: str) -> dict[str, str]:
    done = install(kind, *options, "--folder", str(folder), *WORDS[kind])
    assert done.exit_code == 0, done.stderr
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.process
@pytest.mark.parametrize("scope", ["--user", "--system"])
@pytest.mark.parametrize("kind", list(WORDS))
def test_systemd_accepts_the_units(tmp_path: Path, kind: str, scope: str) -> None:
    hook = ["--on-failure", "echo \"$UNIT\" failed; mail -s '50 %' root"]
    found = units(tmp_path, kind, scope, "--run-as", "root", *hook)
    for name in found:
        instance = name.replace("@.", "@cpu.")
        (tmp_path / name).rename(tmp_path / instance)
        verified = subprocess.run(
            [
                judge("systemd-analyze"),
                "verify",
                *(["--user"] if scope == "--user" else []),
                instance,
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={
                "SYSTEMD_UNIT_PATH": f"{tmp_path}:",
                "PATH": "/usr/bin:/bin",
                "HOME": "/root",
                "XDG_RUNTIME_DIR": str(tmp_path),
            },
        )
        reported = [line for line in verified.stderr.splitlines() if "cuda-cyclegan" in line]
        assert (verified.returncode, reported) == (0, []), verified.stderr


def test_a_worker_has_an_instance_for_each_device_and_finishes_its_jobs(tmp_path: Path) -> None:
    done = install("worker", "--user", "--device", "cpu", "--dry-run")
    assert done.exit_code == 0, done.stderr
    for line in (
        "# cuda-cyclegan-worker@.service",
        "Type=notify",
        "WatchdogSec=5min",
        "TimeoutStopSec=30min",
        "Restart=on-failure",
        "NoNewPrivileges=true",
        "WantedBy=default.target",
    ):
        assert line in done.stdout.splitlines()
    assert "worker --device %i\n" in done.stdout
    assert "User=" not in done.stdout
    assert done.stderr.splitlines() == [
        "To start it, run:",
        "  loginctl enable-linger",
        "  systemctl --user daemon-reload",
        "  systemctl --user enable --now cuda-cyclegan-worker@cpu.service",
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_service_of_the_machine_is_confined(tmp_path: Path) -> None:
    config = tmp_path / "my.toml"
    config.write_text("")
    options = ["--writable", "/share/results", "--run-as", "anna", "--system", "--dry-run"]
    done = CliRunner().invoke(
        app, ["--config", str(config), "service", "install", "node", *options]
    )
    for line in (
        "User=anna",
        "ProtectSystem=strict",
        "PrivateDevices=true",
        "ReadWritePaths=/share/results",
        "ExecReload=/bin/kill -HUP $MAINPID",
        "WantedBy=multi-user.target",
    ):
        assert line in done.stdout.splitlines()
    assert f" --config {quoted(str(config))} node\n" in done.stdout
    worker = install("worker", "--device", "cpu", "--system", "--dry-run").stdout
    assert "PrivateDevices" not in worker  # it needs its GPU


def test_a_summary_has_a_timer_and_keeps_its_date_fields(tmp_path: Path) -> None:
    found = units(tmp_path, "summary", "--user", "--at", "06:30")
    assert "OnCalendar=*-*-* 06:30:00" in found["cuda-cyclegan-summary.timer"]
    start = "jobs summary --since yesterday --html /srv/%%Y-%%m-%%d.html"
    assert start in found["cuda-cyclegan-summary.service"]
    again = install("summary", "--user", "--folder", str(tmp_path), *WORDS["summary"])
    assert (again.exit_code, "exists" in again.stderr) == (2, True)
    for wrong in (["--at", "7"], ["--at", "24:00"]):
        assert install("summary", *wrong).exit_code == 2


@pytest.mark.parametrize("scope", ["--user", "--system"])
def test_an_alarm_is_raised_although_the_service_is_restarted(tmp_path: Path, scope: str) -> None:
    # systemd ignores OnFailure= of a unit that it restarts.
    found = units(tmp_path, "worker", scope, "--on-failure", "mail root")
    manager = "systemctl" if scope == "--system" else "systemctl --user"
    assert (
        'ExecStopPost=+/bin/sh -c "test $$SERVICE_RESULT = success || '
        f"{manager} start --no-block 'cuda-cyclegan-failed@%N.service'\"\n"
    ) in found["cuda-cyclegan-worker@.service"]
    assert "OnFailure=" not in found["cuda-cyclegan-worker@.service"]
    hook = found["cuda-cyclegan-failed@.service"]
    assert 'ExecStart=/bin/sh -c "(mail root\\n); sleep 3600"\n' in hook  # once an hour in a loop


def test_a_stopped_watch_has_not_failed() -> None:
    done = install("watch", "--user", "--dry-run", *WORDS["watch"])
    assert f"SuccessExitStatus={int(Exit.TERMINATED)}" in done.stdout.splitlines()


def test_relative_paths_start_from_the_folder_of_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "50 % done"
    place.mkdir()
    monkeypatch.chdir(place)
    words = ["--", "in", "--model", "m.safetensors", "--output", "results"]
    done = install("watch", "--system", "--dry-run", *words)
    escaped = str(place).replace("%", "%%")
    assert f"WorkingDirectory=-{escaped}" in done.stdout.splitlines()
    assert f"the service may not write {place}/results; add --writable {place}." in done.stderr
    page = install("summary", "--system", "--dry-run", "--", "--json", "-")
    assert "Warning" not in page.stderr


def test_an_output_that_the_service_may_not_write_is_named(tmp_path: Path) -> None:
    summary = ["summary", "--system", "--dry-run"]
    page = ["--", "--since", "yesterday", "--html", f"{tmp_path}/%Y-%m-%d.html"]
    reported = install(*summary, *page).stderr
    assert (
        f"Warning: the service may not write {tmp_path}/%Y-%m-%d.html; add --writable {tmp_path}."
    ) in reported
    reported = install(*summary, "--writable", str(tmp_path), *page).stderr
    assert "Warning" not in reported
    missing = tmp_path / "missing"
    reported = install(*summary, "--writable", str(missing), *page[:3]).stderr
    assert (
        f"Warning: folder {missing} does not exist; create it before the service starts" in reported
    )
    assert "Warning" not in install("summary", "--user", "--dry-run", *page).stderr
    own = ["--log-file", "/var/lib/cuda-cyclegan/worker.log"]
    assert "Warning" not in install("worker", *summary[1:], "-d", "cpu", "--", *own).stderr
    audit = install("node", *summary[1:], "--", "--audit", str(tmp_path / "trail")).stderr
    assert f"the service may not write {tmp_path}/trail; add --writable {tmp_path}." in audit


@pytest.mark.parametrize(
    ("word", "unit"),
    [
        ("plain", "plain"),
        ("", '""'),
        ("two words", '"two words"'),
        ("100%", "100%%"),
        ("$HOME", "$$HOME"),
        ('a"b\\c', '"a\\"b\\\\c"'),
    ],
)
def test_a_word_stays_what_it_is(word: str, unit: str) -> None:
    assert quoted(word) == unit


@pytest.mark.parametrize("kind", list(WORDS))
@pytest.mark.parametrize("place", ["", "?sslpassword=secret-word", "?password=secret-word"])
def test_no_password_goes_into_a_unit(tmp_path: Path, kind: str, place: str) -> None:
    """Units can be read by all users of a machine."""
    user = "worker" if place else "worker:secret-word"
    url = f"postgresql://{user}@dbhost/jobs{place}"
    arguments = [kind, "--folder", str(tmp_path), *(WORDS[kind] if "--" in WORDS[kind] else ["--"])]
    for words in (["--queue", url], [f"--queue={url}"]):
        done = install(*arguments, *words)
        assert done.exit_code == 2
        assert "passfile=" in done.stderr
        assert "secret-word" not in done.output
        assert list(tmp_path.iterdir()) == []


def test_a_unit_names_the_file_of_the_password() -> None:
    url = "postgresql://worker@dbhost/jobs?passfile=/etc/cuda-cyclegan.pgpass"
    done = install("worker", "--user", "--device", "cpu", "--dry-run", "--", "--queue", url)
    assert done.exit_code == 0, done.stderr
    assert f"--queue {quoted(url)} " in done.stdout


def test_an_address_that_may_hold_a_password_goes_into_no_unit(tmp_path: Path) -> None:
    done = install("node", "--folder", str(tmp_path), "--", "--queue", "pg://me:secret/word@host/a")
    assert done.exit_code == 2
    assert "secret" not in done.output
