"""Make the generator that `doctor` tests devices with; its output is computed by PyTorch.

Run as: python tests/support/self_test_maker.py pipelines/doctor/self_test.safetensors
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch_generators import padded_resnet

from cuda_cyclegan.engine.importing.checkpoint.evidence import NetworkChoices
from cuda_cyclegan.engine.model.intensity_maps import Identity
from cuda_cyclegan.engine.model.reference import reference_input
from cuda_cyclegan.pipelines.model_import.card_draft import CardDraft
from cuda_cyclegan.pipelines.model_import.file_kinds import ImportRequest
from cuda_cyclegan.pipelines.model_import.importing import make_model, survey

PURPOSE = CardDraft(
    name="self-test",
    source=("test",),
    target=("test",),
    intensity_in=Identity(),
    intensity_out=Identity(),
    axes="RAS",
    spacing="native",
    patch=(16, 16, 16),
)


def main(target: Path) -> None:
    """Write the model file."""
    torch.manual_seed(0)
    generator = padded_resnet(width=4, blocks=1).eval()
    patch = reference_input(1, (16, 16, 16))
    with torch.no_grad(), TemporaryDirectory() as folder:
        checkpoint, reference = Path(folder, "self_test.pth"), Path(folder, "reference.npz")
        torch.save(generator.state_dict(), checkpoint)
        np.savez(reference, input=patch, output=generator(torch.from_numpy(patch)).numpy())
        request = ImportRequest(checkpoint, NetworkChoices(padding="reflect"), PURPOSE, reference)
        made = make_model(survey(request))
    if not made.verification.passed:
        sys.exit("the product does not compute what PyTorch does")
    target.write_bytes(made.content)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
