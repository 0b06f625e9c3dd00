"""Cards that are only described: of each compute capability from 7.5 to 12.0, and from 4 GB on.

What a capability has is table "Technical Specifications per Compute Capability" of NVIDIA's CUDA
C++ Programming Guide. Multiprocessors, caches, clocks and memory are those of NVIDIA's whitepaper
of the architecture (Turing, GA100, GA102, Ada, H100, Blackwell), of its technical brief of the
Jetson AGX Orin series, and of the product's data sheet.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cuda_cyclegan.engine.compiler.card_properties import CardProperties

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class _Capability:
    """Of a multiprocessor: KiB of shared memory in all and of a block, threads and blocks."""

    shared: int
    shared_of_block: int
    threads: int
    blocks: int


_CAPABILITIES = {
    (7, 5): _Capability(64, 64, 1024, 16),
    (8, 0): _Capability(164, 163, 2048, 32),
    (8, 6): _Capability(100, 99, 1536, 16),
    (8, 7): _Capability(164, 163, 1536, 16),
    (8, 9): _Capability(100, 99, 1536, 24),
    (9, 0): _Capability(228, 227, 2048, 32),
    (10, 0): _Capability(228, 227, 2048, 32),
    (12, 0): _Capability(100, 99, 1536, 24),
}


@dataclass(frozen=True)
class DescribedCard:
    """A product. l2: MiB; memory: GiB that the driver shows; clocks in MHz; bus: bits."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    l2: int
    memory: int
    clock: int
    memory_clock: int
    bus: int

    @property
    def properties(self) -> CardProperties:
        of = _CAPABILITIES[self.capability]
        return CardProperties(
            self.capability,
            self.multiprocessors,
            self.l2 * MIB,
            of.shared_of_block * KIB,
            of.shared * KIB,
        )

    @property
    def limits(self) -> tuple[int, int]:
        """Threads and blocks that a multiprocessor has at most."""
        of = _CAPABILITIES[self.capability]
        return of.threads, of.blocks


DESCRIBED: Mapping[str, DescribedCard] = {
    card.name: card
    for card in (
        DescribedCard("NVIDIA T1000", (7, 5), 14, 1, 4, 1395, 5001, 128),
        DescribedCard("Tesla T4", (7, 5), 40, 4, 15, 1590, 5001, 256),
        DescribedCard("Quadro RTX 6000", (7, 5), 72, 6, 24, 1770, 7001, 384),
        DescribedCard("NVIDIA A30", (8, 0), 56, 24, 24, 1440, 1215, 3072),
        DescribedCard("NVIDIA A100-SXM4-80GB", (8, 0), 108, 40, 80, 1410, 1593, 5120),
        DescribedCard("NVIDIA RTX A2000", (8, 6), 26, 3, 6, 1200, 6001, 192),
        DescribedCard("NVIDIA RTX A4000", (8, 6), 48, 4, 16, 1560, 7001, 256),
        DescribedCard("NVIDIA A10", (8, 6), 72, 6, 23, 1695, 6251, 384),
        DescribedCard("Jetson Orin Nano", (8, 7), 8, 2, 7, 1020, 3199, 128),
        DescribedCard("Jetson AGX Orin", (8, 7), 16, 4, 61, 1300, 3199, 256),
        DescribedCard("NVIDIA RTX 2000 Ada Generation", (8, 9), 22, 12, 16, 2130, 7001, 128),
        DescribedCard("NVIDIA L4", (8, 9), 58, 48, 23, 2040, 6251, 192),
        DescribedCard("NVIDIA L40S", (8, 9), 142, 96, 45, 2520, 9001, 384),
        DescribedCard("NVIDIA H100 PCIe", (9, 0), 114, 50, 80, 1755, 1593, 5120),
        DescribedCard("NVIDIA H200", (9, 0), 132, 60, 141, 1980, 3201, 6144),
        DescribedCard("NVIDIA B200", (10, 0), 148, 126, 178, 1965, 3996, 7680),
        DescribedCard("NVIDIA GeForce RTX 5060", (12, 0), 30, 32, 8, 2497, 14001, 128),
        DescribedCard("NVIDIA RTX PRO 6000", (12, 0), 188, 128, 96, 2617, 14001, 512),
    )
}
CARDS: Mapping[str, CardProperties] = {name: card.properties for name, card in DESCRIBED.items()}
T4, H200, B200 = CARDS["Tesla T4"], CARDS["NVIDIA H200"], CARDS["NVIDIA B200"]
