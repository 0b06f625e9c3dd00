"""Train the demonstration model: a small 3D CycleGAN from T1 to a T2-like contrast, unpaired.

Losses and schedule follow Zhu et al. 2017: least squares for the adversary, L1 for cycle and
identity, a buffer of 50 old fakes, Adam with beta1 0.5, a rate that falls to zero in the second
half. Domain A are patches of the T1 scan, domain B patches of the T2-like volume; each is drawn and
deformed on its own, so no A patch has its B partner in the batch.
"""

import argparse
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
from patches import T1_CHANGES, T2_CHANGES, Sampler, load, seen
from torch import Tensor, nn
from torch.nn import functional

HERE = Path(__file__).parent
REFERENCE = (..., slice(22, 54), slice(32, 64), slice(24, 56))
"""The box of the scan whose translation is kept, to check other programs against."""


@dataclass(frozen=True)
class Options:
    """What train_opt.txt records; names as in training code of this family."""

    name: str = "t1_to_t2_like_demo"
    netG: str = "resnet_6blocks"  # noqa: N815
    norm: str = "instance"
    padding_type: str = "reflect"
    no_dropout: bool = True
    input_nc: int = 1
    output_nc: int = 1
    ngf: int = 8
    n_blocks: int = 6
    n_downsampling: int = 1
    ndf: int = 24
    direction: str = "AtoB"
    gan_mode: str = "lsgan"
    patch_size: int = 48
    batch_size: int = 1
    n_iters: int = 6250
    lr: float = 2e-4
    beta1: float = 0.5
    pool_size: int = 50
    lambda_A: float = 10.0  # noqa: N815
    lambda_B: float = 10.0  # noqa: N815
    lambda_identity: float = 0.5
    seed: int = 20090152


class FakeBuffer:
    """Up to `size` past fakes; half the patches asked for are old ones (Shrivastava 2017)."""

    def __init__(self, size: int, seed: int) -> None:
        self._size, self._fakes, self._random = size, list[Tensor](), random.Random(seed)

    def exchange(self, fakes: Tensor) -> Tensor:
        """As many patches as came in; those that came in may be kept for later."""
        leaving: list[Tensor] = []
        for fake in fakes.detach():
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
    """Two generators, two discriminators and one step of training them."""

    def __init__(self, options: Options, device: torch.device) -> None:
        self.options = options
        shape = options.ngf, options.n_blocks, options.n_downsampling
        self.to_b, self.to_a = (ResnetGenerator(*shape).to(device) for _ in range(2))
        self.judge_a, self.judge_b = (PatchDiscriminator(options.ndf).to(device) for _ in range(2))
        for network in (self.to_b, self.to_a, self.judge_a, self.judge_b):
            initialise(network)
        self.buffer_a = FakeBuffer(options.pool_size, options.seed)
        self.buffer_b = FakeBuffer(options.pool_size, options.seed + 1)
        self.generating = self._adam(self.to_b, self.to_a)
        self.judging = self._adam(self.judge_a, self.judge_b)
        optimizers = self.generating, self.judging
        self.schedules = [torch.optim.lr_scheduler.LambdaLR(o, self._rate) for o in optimizers]

    def _adam(self, *networks: nn.Module) -> torch.optim.Adam:
        weights = itertools.chain(*(network.parameters() for network in networks))
        return torch.optim.Adam(weights, self.options.lr, (self.options.beta1, 0.999))

    def _rate(self, iteration: int) -> float:
        return min(1.0, 2 * (1 - iteration / self.options.n_iters))

    def step(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        """One update of the generators, then one of the discriminators; the losses by name."""
        fake_b, fake_a, losses = self._step_generators(a, b)
        losses |= self._step_discriminators(a, b, fake_a, fake_b)
        for schedule in self.schedules:
            schedule.step()
        return losses

    def _step_generators(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        options = self.options
        freeze(self.judge_a, True)
        freeze(self.judge_b, True)
        fake_b, fake_a = self.to_b(a), self.to_a(b)
        losses = {
            "G_A": adversarial(self.judge_b(fake_b), True),
            "G_B": adversarial(self.judge_a(fake_a), True),
            "cycle_A": functional.l1_loss(self.to_a(fake_b), a) * options.lambda_A,
            "cycle_B": functional.l1_loss(self.to_b(fake_a), b) * options.lambda_B,
        }
        if options.lambda_identity:
            same_b = functional.l1_loss(self.to_b(b), b) * options.lambda_B
            same_a = functional.l1_loss(self.to_a(a), a) * options.lambda_A
            losses["idt_A"] = same_b * options.lambda_identity
            losses["idt_B"] = same_a * options.lambda_identity
        self.generating.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        self.generating.step()
        return fake_b, fake_a, losses

    def _step_discriminators(
        self, a: Tensor, b: Tensor, fake_a: Tensor, fake_b: Tensor
    ) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        self.judging.zero_grad()
        for name, judge, real, fake in (
            ("D_A", self.judge_b, b, self.buffer_b.exchange(fake_b)),
            ("D_B", self.judge_a, a, self.buffer_a.exchange(fake_a)),
        ):
            freeze(judge, False)
            verdict = adversarial(judge(real), True) + adversarial(judge(fake), False)
            losses[name] = verdict / 2
        torch.stack(list(losses.values())).sum().backward()
        self.judging.step()
        return losses


def train(options: Options, device: torch.device, log: Path) -> CycleGan:
    """Train for n_iters steps; every 50th adds the mean losses since the last to `log`."""
    torch.manual_seed(options.seed)
    gan = CycleGan(options, device)
    t1, t2 = (seen(volume).to(device) for volume in load())
    sampler = Sampler(options.patch_size, options.batch_size, options.seed, device)
    sums: dict[str, Tensor] = {}
    with log.open("w", newline="") as file:
        rows = csv.writer(file)
        for iteration in range(1, options.n_iters + 1):
            losses = gan.step(sampler.draw(t1, T1_CHANGES), sampler.draw(t2, T2_CHANGES))
            sums = {name: sums.get(name, 0) + loss.detach() for name, loss in losses.items()}
            if iteration == 1:
                rows.writerow(["iteration", *losses])
            if iteration % 50 == 0:
                means = {name: f"{total.item() / 50:.5f}" for name, total in sums.items()}
                rows.writerow([iteration, *means.values()])
                print(iteration, *(f"{name} {mean}" for name, mean in means.items()), flush=True)
                sums = {}
    return gan


def save(gan: CycleGan, folder: Path) -> None:
    """The A-to-B generator, its options, and what it makes of one patch of the scan."""
    generator = gan.to_b.cpu().eval()
    torch.save(generator.state_dict(), folder / "latest_net_G_A.pth")
    values = asdict(gan.options).items()
    lines = ["----------------- Options ---------------"]
    lines += [f"{key:>25}: {value!s:<30}" for key, value in values]
    lines += ["----------------- End -------------------", ""]
    (folder / "train_opt.txt").write_text("\n".join(lines))
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
    figures = held_out_figures(gan.to_b, gan.to_a, *load(), device)
    training = {
        "seconds": round(seconds, 1),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "parameters": parameters(gan.to_b),
    }
    report = {"training": training, **figures}
    (folder / "figures.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))
    save(gan, folder)


if __name__ == "__main__":
    main()
