"""The commands of the record of the program's behaviour, in the order in which they are run."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from support.recorded_text import Stilled

PAGES = (
    *("", "translate", "submit", "watch", "worker", "plan", "discover", "report", "bench"),
    *("doctor", "jobs", "jobs show", "jobs summary", "jobs cancel", "jobs retry", "jobs pause"),
    *("jobs resume", "jobs prune", "model", "model import", "model inspect", "model verify"),
    *("model export-onnx", "model edit", "model reference-script"),
)

NEEDS_NOTHING = ("worker", "bench", "doctor", "model reference-script")
"""Commands that begin their work when nothing is said."""

MODELS = {
    "reflect": "--padding reflect --intensity-in percentile:0.5,99.5 --intensity-out window:0,1000 "
    "--axes RAS --spacing native --patch 16,16,16 --unproven",
    "replicate": "--reference <root>/inputs/checkpoints/reference.npz --intensity-in zscore:3 "
    "--intensity-out percentile:1,99 --axes LPS --spacing 1.5,1,1.2 --patch 16,16,16 "
    "--padding replicate --licence CC0 --name second",
    "stored": "--norm-statistics stored --intensity-in minmax --intensity-out minmax --axes SPL "
    "--spacing native --patch 16,12,20 --small-volume-padding reflect --code mfazampour",
    "unet": "--concat skip-first --intensity-in window:-1000,1000 --intensity-out window:0,500 "
    "--axes PIR --spacing 1,1,1 --patch 16,8,16 --small-volume-padding minimum "
    "--unproven",
    "sampling": "--padding replicate --upsampling trilinear --intensity-in identity "
    "--intensity-out identity --axes ASR --spacing native --patch 12,12,12 --unproven --end none",
    "named": "--intensity-in zscore --intensity-out zscore --axes RAS --spacing 2,2,2 "
    "--patch 16,16,16 --unproven",
}
"""Options stated about each checkpoint when it is imported."""

OPTIONS = (
    *("--precision fp8", "--precision fp16", "--patch 16", "--patch 0,16,16", "--patch 15,16,16"),
    *("--overlap 1", "--overlap x", "--blend cubic", "--volume -1", "--modality ''"),
    *("--series (", "--min-slices 1", "--format png", "--device cuda", "--device gpu"),
    *("--device cuda:x", "--vram-limit much", "--batch 0", "--tune hard", "--tune-seconds -1"),
    *("--no-such-option", "--report <root>/nowhere/at/all.json"),
)
"""Options of `translate` that no batch can be made with here."""


@dataclass(frozen=True, slots=True)
class Command:
    """A case.

    arguments: <NAME> stands for what the case of this name printed, with hyphens for its spaces,
    and <root> for the folder of all. made: files and folders to look at afterwards. folder: where
    it is run. prepare: what is done before. is_needed: whether other cases build on it.
    """

    name: str
    arguments: tuple[str, ...]
    made: tuple[str, ...] = ()
    folder: str = "made"
    prepare: Callable[[Path], None] | None = None
    is_needed: bool = False


def command(
    name: str, line: str, *made: str, folder: str = "made", is_needed: bool = False
) -> Command:
    """A command from its line; '' stands for an argument without letters."""
    arguments = ("" if word == "''" else word for word in line.split())
    return Command(name, tuple(arguments), made, folder, None, is_needed)


def commands() -> Iterator[Command]:
    """All of them."""
    yield from _pages()
    yield from _imports()
    yield from _models()
    yield from _discoveries()
    yield from _translations()
    yield from _dicom()
    yield from _bad_inputs()
    yield from _wrong_options()
    yield from _configs()
    yield from _queue()
    yield from _reports()
    yield from _machine()


def _pages() -> Iterator[Command]:
    yield command("version", "--version")
    yield command("no command", "")
    yield command("unknown command", "translat")
    for page in PAGES:
        yield command(f"help {page}", f"{page} --help")
    for page in PAGES[1:]:
        if page in NEEDS_NOTHING:
            yield command(f"too much said: {page}", f"{page} more")
        else:
            yield command(f"nothing said: {page}", page)


def model(name: str) -> str:
    """An imported model."""
    return f"<root>/models/{name}.safetensors"


def checkpoint(name: str) -> str:
    return f"<root>/inputs/checkpoints/{name}.pth"


def _imports() -> Iterator[Command]:
    answers = "--source T1 --target T2 --force"
    for name, said in MODELS.items():
        line = f"model import {checkpoint(name)} --output {model(name)} {said} {answers}"
        yield command(f"import {name}", line, f"models/{name}.safetensors", is_needed=True)
    two = f"{MODELS['reflect']} --source T1,T2 --target CT"
    line = f"model import {checkpoint('two-channels')} --output {model('two')} {two}"
    yield command("import two channels", line, "models/two.safetensors", is_needed=True)
    for name in (*MODELS, "unet-deeper", "two-channels", "discriminator", "garbage", "truncated"):
        line = f"model import {checkpoint(name)} --output <root>/models/none.safetensors"
        yield command(f"import {name} with nothing said", line, "models/none.safetensors")
    said = f"{MODELS['reflect']} --source T1 --target T2"
    start = f"model import {checkpoint('reflect')}"
    yield command("import over a model", f"{start} --output {model('reflect')} {said}")
    wrong = {
        "intensity": "--intensity-in window:5,1",
        "axes": "--axes RAL",
        "spacing": "--spacing 0,1,1",
        "patch": "--patch 15,16,16",
        "padding": "--padding circular",
        "direction": "--direction BtoA",
        "generator": "--generator netG_C",
        "norm statistics": "--norm-statistics stored",
        "reference": "--reference <root>/inputs/checkpoints/garbage.pth",
        "reference of another": "--reference <root>/inputs/checkpoints/reference.npz",
    }
    for name, options in wrong.items():
        line = f"{start} --output <root>/models/wrong.safetensors {said} {options}"
        yield command(f"import with a wrong {name}", line, "models/wrong.safetensors")


def _models() -> Iterator[Command]:
    for name in (*MODELS, "two"):
        yield command(f"inspect {name}", f"model inspect {model(name)}")
        yield command(f"inspect {name} as JSON", f"model inspect {model(name)} --json")
        yield command(f"verify {name}", f"model verify {model(name)}")
    for name in ("unet-deeper", "stored", "discriminator", "garbage"):
        yield command(f"inspect checkpoint {name}", f"model inspect {checkpoint(name)}")
        yield command(
            f"inspect checkpoint {name} as JSON", f"model inspect {checkpoint(name)} --json"
        )
    for name in ("reflect", "unet"):
        line = f"model export-onnx {model(name)} --output <root>/onnx/{name}.onnx"
        yield command(f"export {name}", line, f"onnx/{name}.onnx")
        yield command(f"export {name} again", line)
    yield command("reference script", "model reference-script")
    yield Command(
        "verify a damaged model",
        ("model", "verify", model("damaged")),
        prepare=_damage_models,
        is_needed=True,
    )
    for name in ("damaged", "altered", "gone"):
        yield command(f"inspect {name} model", f"model inspect {model(name)}")
        yield command(f"verify {name} model", f"model verify {model(name)}")


def _damage_models(root: Path) -> None:
    whole = (root / "models" / "reflect.safetensors").read_bytes()
    (root / "models" / "damaged.safetensors").write_bytes(whole[: len(whole) - 100])
    (root / "models" / "altered.safetensors").write_bytes(whole.replace(b'"T1', b'"TX'))


def _discoveries() -> Iterator[Command]:
    for folder in ("matrix", "odd", "dicom", "bad", "empty", "nowhere"):
        yield command(f"discover {folder}", f"discover <root>/inputs/{folder}")
        yield command(f"discover {folder} as JSON", f"discover <root>/inputs/{folder} --json")
    options = (
        "--modality CT",
        "--series plain.*MR",
        "--min-slices 3",
        "--allow-uneven",
        "--show-phi",
    )
    for option in (*options, "--series (", "--min-slices 1"):
        yield command(f"discover dicom {option}", f"discover <root>/inputs/dicom {option}")
        yield command(
            f"discover dicom {option} as JSON", f"discover <root>/inputs/dicom {option} --json"
        )


def scans(verb: str, folder: str, name: str, output: str, options: str = "") -> str:
    """The line of a command that takes scans, a model and a folder for the results."""
    paths = f"<root>/inputs/{folder} --model {model(name)} --output <root>/out/{output}"
    return f"{verb} {paths} {options}"


def _translations() -> Iterator[Command]:
    cpu = "--device cpu"
    for name in MODELS:
        inputs = "matrix" if name in ("reflect", "replicate") else "few"
        report = f"--report <root>/reports/{name}.json"
        made = (f"out/{name}", f"reports/{name}.json")
        yield command(f"plan {name}", scans("plan", inputs, name, name, cpu), f"out/{name}")
        line = scans("translate", inputs, name, name, f"{cpu} --seam-score {report}")
        yield command(f"translate with {name}", line, *made, is_needed=True)
        for options in ("", "--seam-score --preview --overlap 0.5"):
            line = scans("plan", "big", name, "big", f"{cpu} {options}")
            yield command(f"plan a big scan with {name} {options}", line)
    again = scans("translate", "few", "unet", "unet", f"{cpu} --report <root>/reports/again.json")
    yield command("translate again", again, "out/unet", "reports/again.json", is_needed=True)
    yield command("plan again", scans("plan", "few", "unet", "unet", cpu))
    yield command("plan with another model", scans("plan", "few", "named", "unet", cpu))
    yield command("translate again with other settings", again + " --overlap 0.5", "out/unet")
    variants = {
        "blend": "--blend linear --overlap 0.4",
        "constant": "--blend constant --overlap 0",
        "patch": "--patch 16,12,20",
        "volume": "--volume 1",
        "preview": "--volume 0 --preview --seam-score --trace <root>/traces/preview.json",
        "nifti": "--format nifti --volume 2",
        "dicom": "--format dicom --volume 2",
        "quiet": "--quiet",
        "verbose": "--verbose",
        "dry": "--dry-run",
    }
    for name, options in variants.items():
        for used in ("reflect", "unet"):
            output = f"odd-{name}-{used}"
            report = f"--report <root>/reports/{output}.json" if name != "dry" else ""
            line = scans("translate", "odd", used, output, f"{cpu} {options} {report}")
            made = (f"out/{output}", *([f"reports/{output}.json"] if report else []))
            traced = ("traces/preview.json",) if name == "preview" else ()
            yield command(
                f"translate odd scans: {name}, {used}",
                line,
                *made,
                *traced,
                is_needed=name == "preview",
            )
    yield command(
        "translate few to NIfTI",
        scans("translate", "few", "reflect", "few-nifti", f"{cpu} --format nifti"),
        "out/few-nifti",
    )
    yield command(
        "overwrite",
        scans("translate", "odd", "unet", "odd-volume-unet", f"{cpu} --volume 1 --overwrite"),
        "out/odd-volume-unet",
    )


def _dicom() -> Iterator[Command]:
    variants = {
        "as it is": "--preview --seam-score",
        "to NIfTI": "--format nifti",
        "of CT": "--modality CT",
        "by description": "--series MR$",
        "uneven": "--allow-uneven",
        "short": "--min-slices 3",
        "private": "--keep-private-tags",
        "shown": "--show-phi",
    }
    for number, (name, options) in enumerate(variants.items()):
        used = ("reflect", "replicate", "unet")[number % 3]
        output = f"dicom-{number}"
        report = f"--device cpu --report <root>/reports/{output}.json"
        yield command(
            f"plan DICOM {name}", scans("plan", "dicom", used, output, f"--device cpu {options}")
        )
        yield command(
            f"translate DICOM {name}",
            scans("translate", "dicom", used, output, f"{report} {options}"),
            f"out/{output}",
            f"reports/{output}.json",
        )


def _bad_inputs() -> Iterator[Command]:
    for verb in ("plan", "translate", "submit"):
        device = "" if verb == "submit" else "--device cpu"
        for folder in ("bad", "empty", "nowhere", "bad/notes.txt", "bad/nan.nii"):
            line = scans(verb, folder, "reflect", f"bad-{verb}", device)
            yield command(f"{verb} {folder}", line, f"out/bad-{verb}")
        for name in ("two", "damaged", "altered", "gone"):
            line = scans(verb, "odd/small.nii", name, "wrong-model", device)
            yield command(f"{verb} with {name} model", line, "out/wrong-model")
        line = scans(verb, "odd/small.nii", "reflect", "../inputs/bad/notes.txt/x", device)
        yield command(f"{verb} into a file", line)
    report = "--device cpu --quiet --report <root>/reports/bad.json"
    line = scans("translate", "bad", "reflect", "bad-report", report)
    yield command("translate bad with a report", line, "reports/bad.json", is_needed=True)
    line = scans("translate", "odd", "reflect", "../inputs/odd", "--device cpu")
    yield command("translate over the inputs", line)


def _wrong_options() -> Iterator[Command]:
    for option in OPTIONS:
        for verb in ("translate", "plan"):
            line = scans(verb, "odd/small.nii", "reflect", "wrong-option", option)
            yield command(f"{verb} {option}", line, "out/wrong-option")
    queue = (
        "--priority high",
        "--window 5",
        "--window 25:00-26:00",
        "--at noon",
        "--queue mysql://x",
    )
    for option in queue:
        line = scans("submit", "odd/small.nii", "reflect", "wrong-option", option)
        yield command(f"submit {option}", line, "out/wrong-option")
    others = {
        "watch": ("--settle -1", "--priority high", "--window 5"),
        "worker": ("--device gpu", "--tries 0", "--device cuda", "--yield-load -1", "--tune hard"),
        "discover": ("--min-slices x", "--series ["),
        "report": ("<root>/nowhere.json", "<root>/nowhere.json --html x.html"),
        "bench": ("--arch gan", "--patch 1", "--device cuda", "--json", "--against tensorflow"),
        "doctor": ("--folder <root>/nowhere", "--queue mysql://x"),
        "jobs": ("--no-such-option",),
        "jobs show": ("--queue <root>/nowhere.db", "none --queue <root>/nowhere.db"),
        "jobs summary": ("none --queue <root>/nowhere.db",),
        "jobs cancel": ("none --queue <root>/nowhere.db",),
        "jobs retry": ("none --queue <root>/nowhere.db",),
        "jobs prune": ("--days -1",),
        "model inspect": ("<root>/nowhere", "<root>/inputs/odd/small.nii --json"),
        "model verify": ("<root>/nowhere", "<root>/inputs/odd/small.nii"),
        "model export-onnx": ("<root>/nowhere --output x.onnx",),
        "model reference-script": ("--no-such-option",),
    }
    for verb, options in others.items():
        for option in options:
            yield command(f"{verb} {option}", f"{verb} {option}")


def _configs() -> Iterator[Command]:
    for name in (
        "sound",
        "unknown-key",
        "unknown-command",
        "wrong-value",
        "wrong-type",
        "no-toml",
        "gone",
    ):
        line = scans("translate", "odd/small.nii", "reflect", f"config-{name}", "--device cpu")
        named = f"--config <root>/inputs/configs/{name}.toml"
        made = f"out/config-{name}"
        yield command(f"config {name}", f"{named} {line}", made)
    line = scans("translate", "odd/small.nii", "reflect", "config-folder", "--device cpu")
    prepared = command("config of the folder", line, "out/config-folder", folder="configured")
    yield Command(prepared.name, prepared.arguments, prepared.made, prepared.folder, _write_config)


def _write_config(root: Path) -> None:
    text = (root / "inputs" / "configs" / "sound.toml").read_text()
    (root / "configured" / "cuda-cyclegan.toml").write_text(text)


def _queue() -> Iterator[Command]:
    queue = "--queue <root>/queue/jobs.db"
    first = scans("submit", "few", "unet", "queue-few", f"{queue} --name few --seam-score")
    urgent = "--priority urgent --preview --volume 1 --name urgent"
    second = scans("submit", "odd", "reflect", "queue-odd", f"{queue} {urgent}")
    third = scans("submit", "bad", "reflect", "queue-bad", f"{queue} --priority low")
    fourth = scans(
        "submit", "dicom", "replicate", "queue-dicom", f"{queue} --window night --at 2999-01-01"
    )
    later = {"first": first, "second": second, "third": third, "fourth": fourth}
    for name, line in later.items():
        yield command(f"submit {name}", line, is_needed=True)
    yield command("submit first again", first)
    yield command("jobs", f"jobs {queue}")
    yield command("jobs as JSON", f"jobs {queue} --json")
    yield from _batches("queued", queue, later)
    for act in ("pause", "pause", "resume"):
        yield command(f"jobs {act}", f"jobs {act} {queue}")
    yield command(
        "worker",
        f"worker {queue} --device cpu --until-empty",
        "out/queue-few",
        "out/queue-odd",
        "out/queue-bad",
        is_needed=True,
    )
    yield from _batches("done", queue, later)
    for act in ("retry", "cancel"):
        for name in later:
            yield command(f"jobs {act} {name}", f"jobs {act} <submit-{name}> {queue}")
    yield command("jobs cancel one", f"jobs cancel <submit-fourth>/00001 {queue}")
    yield command("jobs retry none", f"jobs retry 20200101-abcdef {queue}")
    yield from _batches("cancelled", queue, {"third": third, "fourth": fourth})
    yield command("jobs as JSON at the end", f"jobs show {queue} --json")
    yield command("worker without jobs", f"worker {queue} --device cpu --until-empty")
    yield command("prune", f"jobs prune --days 0 {queue}")
    yield command("jobs after prune", f"jobs {queue}")


def _batches(when: str, queue: str, names: dict[str, str]) -> Iterator[Command]:
    for name in names:
        batch = f"<submit-{name}>"
        yield command(f"jobs of {name}, {when}", f"jobs show {batch} {queue}")
        yield command(f"jobs of {name} as JSON, {when}", f"jobs show {batch} {queue} --json")
        yield command(f"summary of {name}, {when}", f"jobs summary {batch} {queue}")


def _reports() -> Iterator[Command]:
    """Yield commands on reports whose measured numbers are replaced, so that all that is shown is
    stable.
    """
    shown = {
        "one": "<root>/still/unet.json",
        "pictures": "<root>/still/odd-preview-reflect.json",
        "bad": "<root>/still/bad.json",
        "none done": "<root>/still/again.json",
        "two": "<root>/still/unet.json <root>/still/named.json",
        "two unlike": "<root>/still/odd-preview-reflect.json <root>/still/unet.json",
        "three": "<root>/still/unet.json <root>/still/named.json <root>/still/bad.json",
    }
    begin = command("report one", f"report {shown['one']}")
    yield Command(begin.name, begin.arguments, prepare=_still_reports, is_needed=True)
    for name, files in shown.items():
        page = f"pages/{name.replace(' ', '-')}.html"
        yield command(f"report {name} in text", f"report {files}")
        yield command(f"report {name} as a page", f"report {files} --html <root>/{page}", page)
        yield command(f"report {name} over a page", f"report {files} --html <root>/{page}", page)
    for name in ("other", "newer", "text", "empty"):
        yield command(f"report of {name}", f"report <root>/inputs/reports/{name}.json")


def _still_reports(root: Path) -> None:
    for path in (root / "reports").glob("*.json"):
        report = json.loads(path.read_text())
        reported = Stilled(Path("/nowhere")).json(report)
        reported["program"], reported["started"] = report["program"], "2026-01-02T03:04:05+00:00"
        reported["libraries"] = dict.fromkeys(report["libraries"], "1.0")
        reported["machine"] = {
            "host": "host",
            "system": "system",
            "cores": 2,
            "memory_bytes": 1 << 34,
        }
        (root / "still" / path.name).write_text(json.dumps(reported))


def _machine() -> Iterator[Command]:
    yield command("doctor", "doctor --folder <root>/made --queue <root>/queue/none.db")
    yield command(
        "doctor as JSON", "doctor --json --folder <root>/made --queue <root>/queue/none.db"
    )
    small = "--device cpu --ngf 4 --blocks 1 --patch 16,16,16 --seconds 0.01"
    yield command("bench", f"bench {small} --json <root>/made/bench.json", "made/bench.json")
    line = f"bench --model {model('unet')} --device cpu --seconds 0.01 --json -"
    yield command("bench a model", line)
