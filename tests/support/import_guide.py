"""The table of docs/training-codes.md as the program's own table of training codes makes it.

Run it to print the table: PYTHONPATH=tests python -m support.import_guide
"""

from collections.abc import Iterator

from cuda_cyclegan.engine.importing.checkpoint.evidence import word
from cuda_cyclegan.engine.importing.checkpoint.layouts import NAMED_RESNET, NESTED_U_NET
from cuda_cyclegan.engine.importing.checkpoint.training_codes import (
    CODES,
    FEWEST_LEVELS,
    GeneratorCode,
    TrainingCode,
)

HEAD = """\
| `--code` | repository, file | layers in the checkpoint | computation |
| --- | --- | --- | --- |"""


def table_of_codes() -> str:
    """Markdown, a row for each generator of each code."""
    rows = [row for code in CODES for row in _rows(code)]
    notes = [f"- {code.name}: {_note(code)}." for code in CODES if code.note or code.copies]
    return "\n".join([HEAD, *rows, "", *notes])


def _rows(code: TrainingCode) -> Iterator[str]:
    for generator in code.generators:
        source = f"[{code.repository}](https://github.com/{code.repository}), {generator.file}"
        yield f"| {code.name} | {source} | {_writes(generator)} | {_computes(generator)} |"


def _writes(generator: GeneratorCode) -> str:
    norms = " or ".join(dict.fromkeys(form.name for form in generator.norms))
    if generator.layout == NESTED_U_NET:
        return f"nested U-Net of {FEWEST_LEVELS} levels or more; norm {norms}"
    naming = "layers by name" if generator.layout == NAMED_RESNET else "layers by number"
    pads = "pad layers" if generator.pads else "no pad layers"
    decoder = "sampling" if generator.sampled else "transposed convolutions"
    blurred = ", anti-aliasing filters" if generator.blurred else ""
    return f"ResNet, {naming}, {pads}, {decoder}{blurred}; norm {norms}"


def _computes(generator: GeneratorCode) -> str:
    reading = generator.reading
    facts = [f"padding {reading.padding}"]
    if generator.layout == NESTED_U_NET:
        facts += [f"joints {reading.concat}", "leaky:0.2 down, relu up"]
    else:
        facts += [_blocks(generator), f"strided convolutions {reading.down_padding}", "relu"]
        if generator.sampled:
            facts.append(f"{word(reading.upsampling)}, then padding {reading.up_padding}")
    if generator.statistics:
        facts.append(f"statistics of the {generator.statistics}")
    return "; ".join([*facts, f"{reading.end}; epsilon {reading.epsilon:g}"])


def _blocks(generator: GeneratorCode) -> str:
    if not generator.padding_types:
        return f"in blocks {generator.reading.block_padding}"
    kinds = ", ".join(f"{stated} → {padding}" for stated, padding in generator.padding_types)
    return f"in blocks by padding_type ({kinds}; reflect by default)"


def _note(code: TrainingCode) -> str:
    copies = f"the same networks: {', '.join(code.copies)}" if code.copies else ""
    return "; ".join(filter(None, (code.note, copies)))


if __name__ == "__main__":
    print(table_of_codes())
