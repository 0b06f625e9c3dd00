"""GPUs that are only described: of each compute capability from 7.5 to 12.0, and from 4 GB on.

Which GPU has which capability: NVIDIA, "CUDA GPU Compute Capability". What a capability has:
NVIDIA's CCCL, cuda/__device/arch_traits.h. The rest has its sources above the GPU, looked up on
2026-11-22: what the driver of such a GPU listed, where that is public, and else a database of
GPUs. NVIDIA's own whitepapers and data sheets could be read only where they are named. UNCONFIRMED
has what no document states.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cuda_cyclegan.engine.compiler.gpu_properties import GpuProperties

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class _Capability:
    """Limits of a multiprocessor: shared memory in KiB, in all and of a block; threads; blocks."""

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
class DescribedGpu:
    """A product. l2: MiB; clocks in MHz; bus: bits.

    memory: GiB to the nearest, as nvidia-smi lists it where that is named above the GPU (and on a
    Jetson as CUDA does), else the product's. clock: boost, as published. memory_clock: as CUDA
    tells it, half of the data rate; where only a bandwidth is published, that of the bandwidth.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    l2: float
    memory: int
    clock: int
    memory_clock: int
    bus: int

    @property
    def properties(self) -> GpuProperties:
        of = _CAPABILITIES[self.capability]
        return GpuProperties(
            self.capability,
            self.multiprocessors,
            int(self.l2 * MIB),
            of.shared_of_block * KIB,
            of.shared * KIB,
        )

    @property
    def limits(self) -> tuple[int, int]:
        """Threads and blocks that a multiprocessor has at most."""
        of = _CAPABILITIES[self.capability]
        return of.threads, of.blocks


DESCRIBED: Mapping[str, DescribedGpu] = {
    gpu.name: gpu
    for gpu in (
        # siliconcat.net, NVIDIA T1000; visualfoodie.com, Nvidia T1000 Specifications
        DescribedGpu("NVIDIA T1000", (7, 5), 14, 1, 4, 1395, 5001, 128),
        # deviceQuery: gist Terminus-IMRC/5e4b7782; nvidia-smi: modal-labs/modal-client#2797
        DescribedGpu("Tesla T4", (7, 5), 40, 4, 15, 1590, 5001, 256),
        # sysrqmts.com, NVIDIA A40 PCIe vs NVIDIA Quadro RTX 6000
        DescribedGpu("Quadro RTX 6000", (7, 5), 72, 6, 24, 1770, 7001, 384),
        # sysrqmts.com, NVIDIA A30 PCIe vs NVIDIA Jetson TX1 GPU
        DescribedGpu("NVIDIA A30", (8, 0), 56, 24, 24, 1440, 1215, 3072),
        # deviceQuery: gist gengwg/3520df2e; nvidia-smi: modal-labs/modal-client#2797
        DescribedGpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 40, 80, 1410, 1593, 5120),
        # sysrqmts.com, NVIDIA RTX A2000 vs NVIDIA T600
        DescribedGpu("NVIDIA RTX A2000", (8, 6), 26, 3, 6, 1200, 6001, 192),
        # technical.city, A2 PCIe vs RTX A4000; cpu-gpu.alldbin.com, RTX A40 and RTX A4000
        # nvidia-smi: geerlingguy/raspberry-pi-pcie-devices#791
        DescribedGpu("NVIDIA RTX A4000", (8, 6), 48, 4, 16, 1560, 7001, 256),
        # sysrqmts.com, NVIDIA A10 PCIe vs NVIDIA A2; nvidia-smi: modal-labs/modal-client#2797
        DescribedGpu("NVIDIA A10", (8, 6), 72, 6, 22, 1695, 6251, 384),
        # brojogopalsapui.com, Jetson Orin Nano Super, from NVIDIA's data sheet
        # memory: ollama/ollama#18396
        DescribedGpu("Jetson Orin Nano", (8, 7), 8, 2, 7, 1020, 3199, 128),
        # mzph.cn/web/30785, from NVIDIA's technical brief (clock: that of its 5.3 TFLOPS)
        # memory: ollama/ollama#3406
        DescribedGpu("Jetson AGX Orin", (8, 7), 16, 4, 61, 1300, 3199, 256),
        # itcreations.com, NVIDIA RTX 2000 Ada GPU
        DescribedGpu("NVIDIA RTX 2000 Ada Generation", (8, 9), 22, 12, 16, 2130, 7001, 128),
        # deviceQuery: bottlerocket-os/bottlerocket-kernel-kit#139; memory clock: NVIDIA/DCGM#268
        # l2, bus: fpsbench.com, NVIDIA L4 vs Tesla M40; nvidia-smi: modal-labs/modal-client#2797
        DescribedGpu("NVIDIA L4", (8, 9), 58, 48, 22, 2040, 6251, 192),
        # itcreations.com, NVIDIA L40S; nvidia-smi: modal-labs/modal-client#2797
        DescribedGpu("NVIDIA L40S", (8, 9), 142, 96, 45, 2520, 9001, 384),
        # Chips and Cheese, Nvidia's H100: Funny L2, and Tons of Bandwidth
        # docs.nvidia.com, LaunchPad: NVIDIA H100
        DescribedGpu("NVIDIA H100 PCIe", (9, 0), 114, 50, 80, 1755, 1593, 5120),
        # read off a GPU; nvidia-smi: NVIDIA/cuda-samples#311; bus: hwcooling.net, H200 with 141GB
        DescribedGpu("NVIDIA H200", (9, 0), 132, 60, 140, 1980, 3201, 6144),
        # CUDA's attributes: pytorch/ao#4002; nvidia-smi: NVIDIA/TensorRT-LLM#10278
        DescribedGpu("NVIDIA B200", (10, 0), 148, 126.5, 179, 1965, 3996, 7680),
        # fpsbench.com, GeForce RTX 5060 vs AMD Radeon Vega 3
        DescribedGpu("NVIDIA GeForce RTX 5060", (12, 0), 30, 32, 8, 2497, 14001, 128),
        # ferreiradozezere.net and gpu.name, on its announcement; clock: cputronic.com, the Max-Q
        # (126 TFLOPS, huggingface/huggingface.js#1324, is the same clock)
        # nvidia-smi: MarcoPizeta/flash-next-rtxpro6000-bench
        DescribedGpu("NVIDIA RTX PRO 6000", (12, 0), 188, 128, 96, 2617, 14001, 512),
    )
}
UNCONFIRMED: Mapping[str, Mapping[str, str]] = {
    "Jetson Orin Nano": {"l2": "from the Orin NX (deviceQuery, gist atinfinity/8cede915)"},
    "Jetson AGX Orin": {"memory_clock": "from memory", "bus": "from memory"},
    "NVIDIA RTX 2000 Ada Generation": {"memory_clock": "of 224 GB/s; topcpu.net says 256 GB/s"},
    "NVIDIA L40S": {"l2": "from the L40 (topcpu.net), the same chip; a shop (reach.dog) says 48"},
    "NVIDIA B200": {"clock": "from memory; hmc-tech.com says 1980"},
}
"""Fields of GPUs that no document tells, or documents tell differently, and whence they are."""

GPUS: Mapping[str, GpuProperties] = {name: gpu.properties for name, gpu in DESCRIBED.items()}
T4, H200, B200 = GPUS["Tesla T4"], GPUS["NVIDIA H200"], GPUS["NVIDIA B200"]
