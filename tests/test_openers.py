"""Files that others made are opened by one opener, which never waits for a pipe."""

import ast
from collections.abc import Iterator

from support.product_source import ROOT, product

OPENERS = {"io.files.regular"}

OTHERS = {
    "cli.render.log_file": "a log that is rotated, which only writes",
    "cli.render.review": "files of this package",
    "cli.render.terminal": "the null device, in place of a closed stream",
    "engine.compiler.kernel_source": "files of this package",
    "engine.cuda.kernel_archive": "files of this package",
    "engine.cuda.nvrtc": "files of this package",
    "engine.cpu.openvino_support": "the system's own figures",
    "engine.probe.cuda_packages": "the system's list of loaded libraries",
    "io.dicom.pixels.frame_codecs": "the system's own figures",
    "io.files.machine_limits": "the system's own figures",
    "io.files.disk": "the system's list of mounts",
    "io.files.documents": "documents that a user names, among them pipes, with a time limit",
    "io.files.locks": "the system's own number of its start",
    "io.formats.nrrd_metaimage": "a part that was just written",
    "pipelines.doctor.queue": "the system's list of mounts",
    "pipelines.host.memory": "the system's own figures",
    "pipelines.host.processes": "the system's own names",
    "pipelines.report.previews": "a picture, after a look that it is a file",
}
"""Further calls by which each module reads. os.open is for those who lock, append or write."""

_READS = {"read_text", "read_bytes"}


def reads(tree: ast.Module) -> Iterator[str]:
    """Yield calls that open a path by Python's own means."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(_, name)) if name in _READS:
                yield name
            case ast.Call(ast.Attribute(ast.Name("os"), "open")):
                pass
            case ast.Call(ast.Attribute(_, "open"), [ast.Constant(str()), *_]):
                yield "open"
            case ast.Call(ast.Attribute(_, "open"), _, [ast.keyword(), *_]):
                yield "open"
            case ast.Call(ast.Name("open" | "FileIO")):
                yield "open"
            case ast.Call(ast.Attribute(_, "dcmread"), [ast.Name("file" | "path"), *_]):
                yield "dcmread"
            case _:
                pass


def test_files_of_others_are_opened_by_the_opener() -> None:
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path, tree in product().items()
        if any(reads(tree))
    }
    # These read an open file.
    found -= {"io.dicom.series_files", "io.dicom_network.objects"}
    found -= {"io.dicom_network.synthetic_series", "io.dicom_network.sent_objects"}
    assert found == OPENERS | OTHERS.keys()
