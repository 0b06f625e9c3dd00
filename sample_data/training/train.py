"""Train the demonstration model: a small 3D CycleGAN from T1 to a T2-like contrast, unpaired.

Losses and schedule follow Zhu et al. 2017: least squares for the adversary, L1 for the cycle, a
buffer of 50 old fakes, Adam with beta1 0.5, a rate that falls to zero in the second half. There is
no identity loss: what is dark in T1 is bright in T2, so that "leave B as it is" and "turn A into B"
ask different things of the same intensities. Two things keep speckle out: noise on the way round
the cycle, under which a generator cannot hide detail for its partner (Bashkirova et al. 2019), and
weights averaged over the last steps (Yazici et al. 2019). Domain A are patches of the T1 scan,
domain B patches of the T2-like volume; each is drawn and deformed on its own, so no A patch has its
B partner in the batch.
"""

import argparse
import copy
import csv
import itertools
import json
import random
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from heldout import held_out_figures
from networks import PatchDiscriminator, ResnetGenerator, freeze, initialise, parameters
from patches import CHANGES, Sampler, load, seen
from replay import Replay
from torch import Tensor, nn
from torch.nn import functional

HERE = Path(__file__).parent
LOSSES = ("G_A", "G_B", "cycle_A", "cycle_B", "D_A", "D_B")
LOG_EVERY = 50
REFERENCE = (..., slice(22, 54), slice(32, 64), slice(24, 56))
"""The box of the scan whose translation is kept, to check other programs against."""


@dataclass(frozen=True)
class Options:
    """Options recorded in train_opt.txt; names as in training code of this family, where it has
    them.

    cycle_noise: standard deviation, on the scale [-1, 1], of what fakes gain before the way back.
    ema_decay: what is left of the averaged weights after a step.
    """

    name: str = "t1_to_t2_like_demo"
    netG: str = "resnet_3blocks"  # noqa: N815
    norm: str = "instance"
    padding_type: str = "reflect"
    no_dropout: bool = True
    input_nc: int = 1
    output_nc: int = 1
    ngf: int = 12
    n_blocks: int = 3
    n_downsampling: int = 1
    ndf: int = 32
    direction: str = "AtoB"
    gan_mode: str = "lsgan"
    patch_size: int = 48
    batch_size: int = 1
    n_iters: int = 6500
    lr: float = 2e-4
    beta1: float = 0.5
    pool_size: int = 50
    lambda_A: float = 10.0  # noqa: N815
    lambda_B: float = 10.0  # noqa: N815
    cycle_noise: float = 0.05
    ema_decay: float = 0.998
    seed: int = 20090152


class FakeBuffer:
    """Buffer of up to `size` past fakes; half the patches asked for are old ones (Shrivastava
    2017).
    """

    def __init__(self, size: int, seed: int) -> None:
        self._size, self._fakes, self._random = size, list[Tensor](), random.Random(seed)

    def exchange(self, fakes: Tensor) -> Tensor:
        """Return as many patches as came in; those that came in may be kept for later."""
        leaving: list[Tensor] = []
        for fake in fakes.clone():
            if len(self._fakes) < self._size:
                self._fakes.append(fake)
                leaving.append(fake)
            elif self._random.random() < 0.5:
                place = self._random.randrange(self._size)
                leaving.append(self._fakes[place])
                self._fakes[place] = fake
            else:
                leaving.append(fake)
        return torch.stack(leaving)


def adversarial(verdicts: Tensor, real: bool) -> Tensor:
    """Least-squares distance of the verdicts from `real`."""
    return functional.mse_loss(verdicts, torch.full_like(verdicts, float(real)))


class CycleGan:
    """Two generators, two discriminators and one step of training them.

    `mean_to_b` and `mean_to_a` are the generators with weights averaged over the last steps.
    """

    def __init__(self, options: Options, device: torch.device) -> None:
        self.options = options
        shape = options.ngf, options.n_blocks, options.n_downsampling
        self.to_b, self.to_a = (ResnetGenerator(*shape).to(device) for _ in range(2))
        self.judge_a, self.judge_b = (PatchDiscriminator(options.ndf).to(device) for _ in range(2))
        for network in (self.to_b, self.to_a, self.judge_a, self.judge_b):
            initialise(network)
        self.mean_to_b, self.mean_to_a = copy.deepcopy(self.to_b), copy.deepcopy(self.to_a)
        self._buffer_a = FakeBuffer(options.pool_size, options.seed)
        self._buffer_b = FakeBuffer(options.pool_size, options.seed + 1)
        self._rate = torch.tensor(options.lr, device=device)
        self._generating = self._adam(self.to_b, self.to_a)
        self._judging = self._adam(self.judge_a, self.judge_b)
        self._generate, self._judge = self._step_generators, self._step_discriminators
        if device.type == "cuda":
            patch = torch.rand(options.batch_size, 1, *[options.patch_size] * 3, device=device)
            self._generate = Replay(self._step_generators, patch, patch)
            self._judge = Replay(self._step_discriminators, patch, patch, patch, patch)

    def _adam(self, *networks: nn.Module) -> torch.optim.Adam:
        weights = list(itertools.chain(*(network.parameters() for network in networks)))
        betas = self.options.beta1, 0.999
        return torch.optim.Adam(weights, self._rate, betas, capturable=weights[0].is_cuda)

    def step(self, a: Tensor, b: Tensor, iteration: int) -> Tensor:
        """One update of the generators, then one of the discriminators: [6], as LOSSES names."""
        self._rate.fill_(self.options.lr * min(1.0, 2 * (1 - iteration / self.options.n_iters)))
        fake_a, fake_b, generating = self._generate(a, b)
        old_a, old_b = self._buffer_a.exchange(fake_a), self._buffer_b.exchange(fake_b)
        (judging,) = self._judge(a, b, old_a, old_b)
        return torch.cat([generating, judging])

    def _step_generators(self, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        options = self.options
        freeze(self.judge_a, True)
        freeze(self.judge_b, True)
        fake_a, fake_b = self.to_a(b), self.to_b(a)
        losses = torch.stack(
            [
                adversarial(self.judge_b(fake_b), True),
                adversarial(self.judge_a(fake_a), True),
                functional.l1_loss(self.to_a(self._noisy(fake_b)), a) * options.lambda_A,
                functional.l1_loss(self.to_b(self._noisy(fake_a)), b) * options.lambda_B,
            ]
        )
        self._generating.zero_grad()
        losses.sum().backward()
        self._generating.step()
        self._average()
        return fake_a.detach(), fake_b.detach(), losses.detach()

    def _noisy(self, fakes: Tensor) -> Tensor:
        return fakes + self.options.cycle_noise * torch.randn_like(fakes)

    @torch.no_grad()
    def _average(self) -> None:
        for mean, newest in ((self.mean_to_b, self.to_b), (self.mean_to_a, self.to_a)):
            for average, weights in zip(mean.parameters(), newest.parameters(), strict=True):
                average.lerp_(weights, 1 - self.options.ema_decay)

    def _step_discriminators(
        self, a: Tensor, b: Tensor, fake_a: Tensor, fake_b: Tensor
    ) -> tuple[Tensor, ...]:
        freeze(self.judge_a, False)
        freeze(self.judge_b, False)
        losses = torch.stack(
            [
                adversarial(judge(real), True) + adversarial(judge(fake), False)
                for judge, real, fake in ((self.judge_b, b, fake_b), (self.judge_a, a, fake_a))
            ]
        )
        losses = losses / 2
        self._judging.zero_grad()
        losses.sum().backward()
        self._judging.step()
        return (losses.detach(),)


def train(options: Options, device: torch.device, log: Path) -> CycleGan:
    """Train for n_iters steps; every 50th adds the mean losses since the last to `log`."""
    torch.manual_seed(options.seed)
    gan = CycleGan(options, device)
    t1, t2 = (seen(volume).to(device) for volume in load())
    sampler = Sampler(options.patch_size, options.batch_size, options.seed, device)
    sums = torch.zeros(len(LOSSES), device=device)
    with log.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["iteration", *LOSSES])
        for iteration in range(1, options.n_iters + 1):
            sums += gan.step(sampler.draw(t1, CHANGES), sampler.draw(t2, CHANGES), iteration)
            if iteration % LOG_EVERY == 0:
                means = [f"{mean:.5f}" for mean in (sums / LOG_EVERY).tolist()]
                rows.writerow([iteration, *means])
                print(iteration, *means, flush=True)
                sums.zero_()
    return gan


def write_options(options: dict[str, object], path: Path) -> None:
    """Write the options as training code of this family does, and as importers read them."""
    lines = ["----------------- Options ---------------"]
    lines += [f"{key:>25}: {value!s:<30}" for key, value in options.items()]
    lines += ["----------------- End -------------------", ""]
    path.write_text("\n".join(lines))


def save(gan: CycleGan, folder: Path) -> None:
    """The A-to-B generator, its options, and what it makes of one patch of the scan."""
    generator = gan.mean_to_b.cpu().eval()
    torch.save(generator.state_dict(), folder / "latest_net_G_A.pth")
    write_options(asdict(gan.options), folder / "train_opt.txt")
    patch = 2 * load()[0][REFERENCE] - 1
    with torch.no_grad():
        output = generator(patch)
    np.savez_compressed(folder / "reference.npz", input=patch.numpy(), output=output.numpy())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=HERE)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for option in fields(Options):
        if option.type in (int, float):
            parser.add_argument(f"--{option.name}", type=option.type, default=option.default)
    return parser.parse_args()


def main() -> None:
    arguments = vars(parse())
    device, folder = torch.device(arguments.pop("device")), arguments.pop("output")
    torch.backends.cudnn.benchmark = True
    folder.mkdir(parents=True, exist_ok=True)
    options = Options(**arguments)
    start = time.perf_counter()
    gan = train(options, device, folder / "loss.csv")
    seconds = time.perf_counter() - start
    figures = held_out_figures(gan.mean_to_b, gan.mean_to_a, *load(), device)
    training = {
        "seconds": round(seconds, 1),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "parameters": parameters(gan.mean_to_b),
    }
    report = {"training": training, **figures}
    (folder / "figures.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))
    save(gan, folder)


if __name__ == "__main__":
    main()
