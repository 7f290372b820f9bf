"""Data sheets of GPUs, by a short name or by the name that torch reports."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from zoo.errors import ZooError, did_you_mean

GB, GIB, TERA = 1e9, 2**30, 1e12


@dataclass(frozen=True)
class Device:
    """Dense peaks in FLOP/s, memory in bytes, rates in bytes per second and direction."""

    # matrix products in bfloat16 (float16 before Ampere), summed in float32, without sparsity
    half: float
    single: float  # in float32, without TF32, as torch multiplies by default
    memory: float
    bandwidth: float  # of that memory
    link: float  # to the other GPUs of a node: NVLink, or PCIe where there is none
    # to other nodes, per GPU: what the maker's eight-GPU server has, 10 Gbit Ethernet where he has
    # none
    network: float
    reached: float  # share of the peak that training reaches, recomputation counted and traffic not
    called: tuple[str, ...]  # torch.cuda.get_device_name()

    def peak(self, precision: str) -> float:
        """FLOP/s at one of trainer.precision's words."""
        return self.single if precision.startswith("32") else self.half


def _device(
    half: float,
    single: float,
    memory: float,
    bandwidth: float,
    link: float,
    network: float,
    reached: float,
    *called: str,
) -> Device:
    return Device(
        half * TERA,
        single * TERA,
        memory * GIB,
        bandwidth * GB,
        link * GB,
        network * GB,
        reached,
        called,
    )


# NVIDIA's data sheets (V100 2020, T4 2019, A100 2022, H100 2023, H200 2024, L4 and L40S 2023, RTX
# A6000 2022), its white papers
# on GA102 (2021), Ada (2023) and RTX Blackwell (2025), and the DGX-1, DGX A100 and DGX H100 system
# guides for the network.
# `reached`: MosaicML's table of MPT from 7B to 70B (llm-foundry, 2023) has .58 to .73 on A100 and
# .40 to .57 on H100, Shoeybi
# et al. 2019 have .30 on V100; the others are a guess
KNOWN = {
    "v100_16": _device(125, 15.7, 16, 900, 150, 6.25, 0.3, "Tesla V100-SXM2-16GB"),
    "v100_32": _device(
        125, 15.7, 32, 900, 150, 6.25, 0.3, "Tesla V100-SXM2-32GB", "Tesla V100-SXM3-32GB"
    ),
    "t4": _device(65, 8.1, 16, 320, 16, 1.25, 0.5, "Tesla T4"),
    "a100_40": _device(
        312,
        19.5,
        40,
        1555,
        300,
        25,
        0.65,
        "NVIDIA A100-SXM4-40GB",
        "A100-SXM4-40GB",
        "NVIDIA A100-PCIE-40GB",
    ),
    "a100_80": _device(
        312, 19.5, 80, 2039, 300, 25, 0.65, "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"
    ),
    "h100": _device(989.4, 66.9, 80, 3350, 450, 50, 0.48, "NVIDIA H100 80GB HBM3"),
    "h100_pcie": _device(756, 51.2, 80, 2000, 64, 25, 0.48, "NVIDIA H100 PCIe"),
    "h200": _device(989.4, 66.9, 140, 4800, 450, 50, 0.48, "NVIDIA H200"),
    "l4": _device(121, 30.3, 24, 300, 32, 1.25, 0.5, "NVIDIA L4"),
    "l40s": _device(362, 91.6, 48, 864, 32, 25, 0.5, "NVIDIA L40S"),
    "a6000": _device(154.8, 38.7, 48, 768, 32, 1.25, 0.5, "NVIDIA RTX A6000"),
    "rtx_3090": _device(71, 35.6, 24, 936, 32, 1.25, 0.5, "NVIDIA GeForce RTX 3090"),
    "rtx_4090": _device(165.2, 82.6, 24, 1008, 32, 1.25, 0.5, "NVIDIA GeForce RTX 4090"),
    "rtx_5090": _device(209.5, 104.8, 32, 1792, 64, 1.25, 0.5, "NVIDIA GeForce RTX 5090"),
}


def named(name: str) -> Device:
    """The GPU of a short name (a100_80). Raises ZooError for one that is not in the table."""
    if name not in KNOWN:
        raise ZooError(f"unknown gpu {name!r}{did_you_mean(name, KNOWN)}")
    return KNOWN[name]


def found(called: str) -> Device | None:
    """The GPU that torch.cuda.get_device_name() calls so; None for one that is not in the table,
    rather than a guess.
    """
    return next((device for device in KNOWN.values() if called in device.called), None)


def refuse_precision(precision: str) -> None:
    """Raises ZooError for a precision that only a GPU has, where there certainly is none."""
    if precision == "16-mixed" and no_gpu():
        raise ZooError(
            "trainer.precision=16-mixed needs a GPU, and there is none here: give"
            " trainer.precision=bf16-mixed"
        )


def no_gpu() -> bool:
    """Whether it is certain that torch finds no GPU here: torch is asked where it is loaded,
    else the kernel's devices.
    """
    if torch := sys.modules.get("torch"):
        return not (torch.cuda.is_available() or torch.backends.mps.is_available())
    devices = (
        "nvidia*",
        "nvmap",
        "kfd",
        "dxg",
    )  # of CUDA, its small boards, ROCm, and Windows' own Linux
    return sys.platform == "linux" and not any(any(Path("/dev").glob(device)) for device in devices)
