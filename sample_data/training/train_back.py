"""Train the way back of the demonstration model: from the T2-like contrast to T1, unpaired.

The generator that leads forth is the shipped one and stays as it is; its partner of the training
was not kept. Of the losses of a CycleGAN those remain that have the way back in them: its adversary
and both cycles. Patches, noise on the way round, the buffer of old fakes and the averaged weights
are those of train.py. The rate falls to zero in the second half of the given seconds.
"""

import argparse
import copy
import csv
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from heldout import compare, translate
from networks import PatchDiscriminator, ResnetGenerator, freeze, initialise, parameters
from patches import CHANGES, HELD_OUT_FROM, Sampler, load, seen
from replay import Replay
from torch import Tensor, nn
from torch.nn import functional
from train import LOG_EVERY, REFERENCE, FakeBuffer, Options, adversarial, write_options

HERE = Path(__file__).parent
FORTH = HERE / "latest_net_G_A.pth"
LOSSES = ("G_B", "cycle_A", "cycle_B", "D_A")


@dataclass(frozen=True)
class BackOptions(Options):
    """Options as in train.py. seconds: after which training ends; n_iters: the steps it made."""

    name: str = "t2_like_to_t1_demo"
    direction: str = "BtoA"
    n_iters: int = 0
    seconds: float = 85.0


class WayBack:
    """A generator back, its discriminator and one step of training them.

    `mean` is the generator with weights averaged over the last steps.
    """

    def __init__(self, options: BackOptions, device: torch.device) -> None:
        self.options = options
        shape = options.ngf, options.n_blocks, options.n_downsampling
        self.forth, self.back = (ResnetGenerator(*shape).to(device) for _ in range(2))
        self.judge = PatchDiscriminator(options.ndf).to(device)
        for network in (self.back, self.judge):
            initialise(network)
        self.forth.load_state_dict(torch.load(FORTH, weights_only=True))
        freeze(self.forth, True)
        self.mean = copy.deepcopy(self.back)
        self._buffer = FakeBuffer(options.pool_size, options.seed)
        self._rate = torch.tensor(options.lr, device=device)
        self._generating, self._judging = self._adam(self.back), self._adam(self.judge)
        self._generate, self._discriminate = self._step_generator, self._step_discriminator
        if device.type == "cuda":
            patch = torch.rand(options.batch_size, 1, *[options.patch_size] * 3, device=device)
            self._generate = Replay(self._step_generator, patch, patch)
            self._discriminate = Replay(self._step_discriminator, patch, patch)

    def _adam(self, network: nn.Module) -> torch.optim.Adam:
        weights, betas = list(network.parameters()), (self.options.beta1, 0.999)
        return torch.optim.Adam(weights, self._rate, betas, capturable=weights[0].is_cuda)

    def step(self, a: Tensor, b: Tensor, progress: float) -> Tensor:
        """One update of each network: [4], as LOSSES names. progress: 0 to 1, of the training."""
        self._rate.fill_(self.options.lr * min(1.0, 2 * (1 - progress)))
        fake_a, generating = self._generate(a, b)
        (judging,) = self._discriminate(a, self._buffer.exchange(fake_a))
        return torch.cat([generating, judging])

    def _step_generator(self, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        options = self.options
        freeze(self.judge, True)
        fake_a = self.back(b)
        with torch.no_grad():
            fake_b = self.forth(a)
        losses = torch.stack(
            [
                adversarial(self.judge(fake_a), True),
                functional.l1_loss(self.back(self._noisy(fake_b)), a) * options.lambda_A,
                functional.l1_loss(self.forth(self._noisy(fake_a)), b) * options.lambda_B,
            ]
        )
        self._generating.zero_grad()
        losses.sum().backward()
        self._generating.step()
        self._average()
        return fake_a.detach(), losses.detach()

    def _noisy(self, fakes: Tensor) -> Tensor:
        return fakes + self.options.cycle_noise * torch.randn_like(fakes)

    @torch.no_grad()
    def _average(self) -> None:
        for average, weights in zip(self.mean.parameters(), self.back.parameters(), strict=True):
            average.lerp_(weights, 1 - self.options.ema_decay)

    def _step_discriminator(self, a: Tensor, fake_a: Tensor) -> tuple[Tensor, ...]:
        freeze(self.judge, False)
        loss = adversarial(self.judge(a), True) + adversarial(self.judge(fake_a), False)
        self._judging.zero_grad()
        (loss / 2).backward()
        self._judging.step()
        return (loss.detach().reshape(1) / 2,)


def train(options: BackOptions, device: torch.device, log: Path) -> WayBack:
    """Train for so many seconds; every 50th step adds the mean losses since the last to `log`."""
    torch.manual_seed(options.seed)
    t1, t2 = (seen(volume).to(device) for volume in load())
    sampler = Sampler(options.patch_size, options.batch_size, options.seed, device)
    way_back = WayBack(options, device)
    sums, steps, start = torch.zeros(len(LOSSES), device=device), 0, time.perf_counter()
    with log.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["iteration", *LOSSES])
        while (progress := (time.perf_counter() - start) / options.seconds) < 1:
            sums += way_back.step(sampler.draw(t1, CHANGES), sampler.draw(t2, CHANGES), progress)
            steps += 1
            if steps % LOG_EVERY == 0:
                means = [f"{mean:.5f}" for mean in (sums / LOG_EVERY).tolist()]
                rows.writerow([steps, *means])
                print(steps, *means, flush=True)
                sums.zero_()
    way_back.options = replace(options, n_iters=steps)
    return way_back


@torch.no_grad()
def held_out_figures(way_back: WayBack, device: torch.device) -> dict[str, object]:
    """Return errors over held-out brain voxels, against T1 on [0, 1]: from the T2-like volume, and
    round.
    """
    t1, t2 = (volume.to(device) for volume in load())
    held_out = t2 > 0
    held_out[:, :, :, :HELD_OUT_FROM] = False
    return {
        "voxels": int(held_out.sum()),
        "from_the_t2_like": compare(translate(way_back.mean, t2), t1, held_out),
        "t2_like_as_it_is": compare(t2, t1, held_out),
        "cycle": compare(translate(way_back.mean, translate(way_back.forth, t1)), t1, held_out),
    }


def save(way_back: WayBack, folder: Path) -> None:
    """The generator, its options, and what it makes of one patch of the T2-like volume."""
    generator = way_back.mean.cpu().eval()
    torch.save(generator.state_dict(), folder / "latest_net_G_B.pth")
    write_options(asdict(way_back.options), folder / "train_opt.txt")
    patch = 2 * load()[1][REFERENCE] - 1
    with torch.no_grad():
        output = generator(patch)
    np.savez_compressed(folder / "reference.npz", input=patch.numpy(), output=output.numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=HERE / "back")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=BackOptions.seconds)
    asked = parser.parse_args()
    device, folder = torch.device(asked.device), asked.output
    torch.backends.cudnn.benchmark = True
    folder.mkdir(parents=True, exist_ok=True)
    way_back = train(BackOptions(seconds=asked.seconds), device, folder / "loss.csv")
    training = {
        "seconds": asked.seconds,
        "iterations": way_back.options.n_iters,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "parameters": parameters(way_back.mean),
    }
    report = {"training": training, "held_out_region": held_out_figures(way_back, device)}
    (folder / "figures.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))
    save(way_back, folder)


if __name__ == "__main__":
    main()
