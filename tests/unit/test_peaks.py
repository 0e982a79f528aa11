"""The ceilings: exact names only, dense figures, each with its source; nothing is guessed."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
import tomllib

from gpuproof.hardware.boards import PEAK_TYPE_OF_PRECISION, find_memory_peak, find_peak

# Read off the data sheets by hand: fp32, tf32, amp (fp16), bf16, fp8 in dense TFLOP/s, then GB/s.
TABLE = {
    "Tesla V100-SXM2-16GB": (15.7, None, 125, None, None, 900),
    "Tesla V100-SXM2-32GB": (15.7, None, 125, None, None, 900),
    "Tesla V100-PCIE-16GB": (14, None, 112, None, None, 900),
    "Tesla V100-PCIE-32GB": (14, None, 112, None, None, 900),
    "Tesla T4": (8.1, None, 65, None, None, 320),
    "NVIDIA A10": (31.2, 62.5, 125, 125, None, 600),
    "NVIDIA A100-SXM4-40GB": (19.5, 156, 312, 312, None, 1555),
    "NVIDIA A100-SXM4-80GB": (19.5, 156, 312, 312, None, 2039),
    "NVIDIA A100-PCIE-40GB": (19.5, 156, 312, 312, None, 1555),
    "NVIDIA A100 80GB PCIe": (19.5, 156, 312, 312, None, 1935),
    "NVIDIA L4": (30.3, 120 / 2, 242 / 2, 242 / 2, 485 / 2, 300),
    "NVIDIA L40S": (91.6, 183, 362.05, 362.05, 733, 864),
    "NVIDIA GeForce RTX 4090": (82.6, 82.6, 165.2, 165.2, None, 1008),
    "NVIDIA H100 80GB HBM3": (67, 989 / 2, 1979 / 2, 1979 / 2, 3958 / 2, 3350),
    "NVIDIA H100 PCIe": (51, 756 / 2, 1513 / 2, 1513 / 2, 3026 / 2, 2000),
    "NVIDIA H100 NVL": (60, 835 / 2, 1671 / 2, 1671 / 2, 3341 / 2, 3900),
    "NVIDIA H200": (67, 989 / 2, 1979 / 2, 1979 / 2, 3958 / 2, 4800),
    "NVIDIA H200 NVL": (60, 835 / 2, 1671 / 2, 1671 / 2, 3341 / 2, 4800),
    "NVIDIA B200": (75, 2200 / 2, 4500 / 2, 4500 / 2, 9000 / 2, 8000),
    "NVIDIA B300 SXM6 AC": (None, 2250 / 2, 4500 / 2, 4500 / 2, 9000 / 2, 8000),
    "NVIDIA GB200": (80, 2500 / 2, 5000 / 2, 5000 / 2, 10000 / 2, 8000),
    "NVIDIA GB300": (80, 2500 / 2, 5000 / 2, 5000 / 2, 10000 / 2, 8000),
    "NVIDIA H20": (44, 74, 148, 148, 296, 4000),
    "NVIDIA L40": (90.5, 90.5, 181.05, 181.05, 362, 864),
    "NVIDIA RTX 6000 Ada Generation": (91.1, 182.1, 364.2, 364.2, 1457 / 2, 960),
    "NVIDIA RTX A6000": (38.7, 77.4, 309.7 / 2, 309.7 / 2, None, 768),
    "NVIDIA GeForce RTX 5090": (104.8, 104.8, 209.5, 209.5, None, 1792),
    "AMD Instinct MI325X": (163.4, 653.7, 1307.4, 1307.4, 2614.9, 6000),
    "AMD Instinct MI350X": (144.2, None, 2300, 2300, None, 8000),
    "AMD Instinct MI355X": (157.3, None, 2500, 2500, 5000, 8000),
    "AMD Instinct MI250X": (95.7 / 2, None, 383 / 2, 383 / 2, None, 3276.8 / 2),
    "AMD Instinct MI300X": (163.4, 653.7, 1307.4, 1307.4, 2614.9, 5300),
    "AMD Instinct MI300X OAM": (163.4, 653.7, 1307.4, 1307.4, 2614.9, 5300),
}
PRECISIONS = ("fp32", "tf32", "amp", "bf16", "fp8")


@pytest.mark.parametrize(
    ("name", "precision", "tflops"),
    [
        (name, precision, row[column])
        for name, row in TABLE.items()
        for column, precision in enumerate(PRECISIONS)
    ],
)
def test_the_peaks_are_those_of_the_data_sheets(name: str, precision: str, tflops: float | None) -> None:
    peak = find_peak(name, precision)
    assert (None if peak is None else peak.flops_per_s) == (None if tflops is None else tflops * 1e12)
    assert peak is None or peak.dtype == PEAK_TYPE_OF_PRECISION[precision]


@pytest.mark.parametrize(("name", "gb_per_s"), [(name, row[-1]) for name, row in TABLE.items()])
def test_the_memory_bandwidths_are_those_of_the_data_sheets(name: str, gb_per_s: float) -> None:
    peak = find_memory_peak(name)
    assert peak is not None
    assert peak.bytes_per_s == gb_per_s * 1e9


@pytest.mark.parametrize(
    ("name", "num_units", "boost_ghz", "flops_per_clock"),
    [
        # Multiprocessors × boost clock × dense FP16 operations with FP32 accumulation that one of them does
        # in a clock, from the vendors' architecture white papers: another way to the same figure, which a
        # sparse figure in the table would miss by 2.
        ("Tesla V100-SXM2-16GB", 80, 1.53, 1024),
        ("Tesla V100-PCIE-32GB", 80, 1.38, 1024),
        ("Tesla T4", 40, 1.59, 1024),
        ("NVIDIA A10", 72, 1.695, 1024),
        ("NVIDIA A100-SXM4-80GB", 108, 1.41, 2048),
        ("NVIDIA L4", 60, 2.04, 1024),
        ("NVIDIA L40S", 142, 2.52, 1024),
        ("NVIDIA GeForce RTX 4090", 128, 2.52, 512),
        ("NVIDIA H100 80GB HBM3", 132, 1.83, 4096),
        ("NVIDIA H200", 132, 1.83, 4096),
        ("AMD Instinct MI300X", 304, 2.1, 2048),
        ("NVIDIA L40", 142, 2.49, 512),
        ("NVIDIA RTX 6000 Ada Generation", 142, 2.505, 1024),
        ("NVIDIA RTX A6000", 84, 1.8, 1024),
        ("NVIDIA GeForce RTX 5090", 170, 2.407, 512),
        ("AMD Instinct MI325X", 304, 2.1, 2048),
        ("AMD Instinct MI350X", 256, 2.2, 4096),
        ("AMD Instinct MI355X", 256, 2.4, 4096),
        ("AMD Instinct MI250X", 110, 1.7, 1024),
    ],
)
def test_the_peaks_are_what_the_units_can_do_at_their_clock(
    name: str, num_units: int, boost_ghz: float, flops_per_clock: int
) -> None:
    peak = find_peak(name, "amp")
    assert peak is not None
    assert peak.flops_per_s == pytest.approx(num_units * boost_ghz * 1e9 * flops_per_clock, rel=0.05)
    assert peak.clock_mhz == pytest.approx(boost_ghz * 1e3, rel=0.02)


@pytest.mark.parametrize(
    ("precision", "clock_mhz", "times"),
    [
        ("bf16", 1980, 1980 / 1830),
        ("fp32", 1980, 1.0),  # the vector pipeline's peak holds at 1,980 MHz
        ("bf16", 1500, 1.0),
        ("bf16", None, 1.5),
    ],
)
def test_a_peak_grows_with_the_clock(precision: str, clock_mhz: float | None, times: float) -> None:
    peak = find_peak("NVIDIA H100 80GB HBM3", precision)
    assert peak is not None
    assert peak.at_clock(clock_mhz) / peak.flops_per_s == pytest.approx(times)


@pytest.mark.parametrize(
    "name",
    [
        *("H200", "nvidia h200", "NVIDIA H200 ", "NVIDIA A100", "NVIDIA A100-SXM-64GB", "NVIDIA A100-SXM4"),
        *(
            "NVIDIA L40G",
            "NVIDIA L2",
            "NVIDIA A10G",
            "NVIDIA A100 40GB PCIe",
            "NVIDIA H100",
            "NVIDIA H100 SXM",
        ),
        *(
            "NVIDIA GeForce RTX 4090 D",
            "NVIDIA GeForce RTX 4090 Laptop GPU",
            "NVIDIA GB100",
            "NVIDIA B200 NVL",
        ),
        *("T4", "NVIDIA T400", "Tesla V100-SXM3-32GB", "Tesla V100S-PCIE-32GB", "NVIDIA GH200 480GB"),
        *("AMD Instinct MI300A", "AMD Instinct MI250X / MI250", "AMD Radeon Graphics", "CPU", ""),
        *(
            "NVIDIA B300",
            "NVIDIA GB10",
            "NVIDIA H20 NVL16",
            "NVIDIA H20-3e",
            "NVIDIA H800",
            "NVIDIA A800-SXM4-80GB",
        ),
        *("NVIDIA GeForce RTX 5090 D", "NVIDIA RTX 6000D", "Quadro RTX 6000", "AMD Instinct MI350X VF"),
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    ],
)
def test_a_name_that_is_not_exactly_known_has_no_ceiling(name: str) -> None:
    assert all(find_peak(name, precision) is None for precision in PRECISIONS)
    assert find_memory_peak(name) is None


A100_TFLOPS = 312
"""What other programs take for a board whose name they do not know."""


@pytest.mark.parametrize(
    ("name", "achieved_tflops", "their_share", "share"),
    [
        # pytorch/torchtitan pull request 4779: "MFU ~152 % for 8B", 20.5 % with the figure of the data sheet.
        ("AMD Instinct MI350X", 1.52 * A100_TFLOPS, 1.52, 0.205),
        # AMD-AGI/Primus 772: "impossible values (e.g. 563 %)".
        ("AMD Instinct MI355X", 5.63 * A100_TFLOPS, 5.63, 0.703),
        # allenai/OLMo-core 817: 275.6 TFLOP/s were 88.32 %, and at another moment 329.8 were 105.70 %.
        ("NVIDIA B300 SXM6 AC", 275.6, 0.8832, 0.1225),
        ("NVIDIA B300 SXM6 AC", 329.8, 1.057, 0.1466),
        # PrimeIntellect-ai/prime-rl 3168: GB200 and GB300, "overstating MFU by ~7x".
        ("NVIDIA GB200", 2 * A100_TFLOPS, 2.0, 0.2496),
        ("NVIDIA GB300", 2 * A100_TFLOPS, 2.0, 0.2496),
        # pytorch/torchtitan 2884: A6000, whose data sheet prints 309.7 with sparsity; here too large by 2.
        ("NVIDIA RTX A6000", 120.0, 120 / A100_TFLOPS, 0.775),
    ],
)
def test_a_share_of_the_peak_is_what_six_projects_had_wrong(
    name: str, achieved_tflops: float, their_share: float, share: float
) -> None:
    peak = find_peak(name, "bf16")
    assert peak is not None
    assert achieved_tflops / A100_TFLOPS == pytest.approx(their_share, rel=0.001)
    assert achieved_tflops * 1e12 / peak.flops_per_s == pytest.approx(share, rel=0.01)


def test_a_mixed_host_asks_for_the_board_of_the_device_and_not_of_its_neighbour() -> None:
    """pytorch/torchtitan 4800: a job on A100s was priced as on H100s, since lspci listed one of them."""
    a100, h100 = (find_peak(name, "bf16") for name in ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"))
    assert a100 is not None
    assert h100 is not None
    assert a100.flops_per_s == A100_TFLOPS * 1e12
    assert h100.flops_per_s > 3 * a100.flops_per_s


def test_a_precision_that_is_not_known_has_no_ceiling() -> None:
    assert find_peak("NVIDIA H200", "fp64") is None


def test_a_figure_that_was_halved_says_so() -> None:
    halved, vector, dense = (
        find_peak("NVIDIA H200", "bf16"),
        find_peak("NVIDIA H200", "fp32"),
        find_peak("NVIDIA A100-SXM4-80GB", "bf16"),
    )
    assert halved is not None
    assert vector is not None
    assert dense is not None
    assert "half the sparse value" in halved.provenance
    assert "half the sparse value" not in vector.provenance
    assert "half the sparse value" not in dense.provenance
    assert halved.provenance.endswith("as of 2026-11-20")


def test_every_figure_has_a_source_and_a_date_and_no_name_stands_twice() -> None:
    devices = tomllib.loads(files("gpuproof").joinpath("hardware", "peaks.toml").read_text(encoding="utf-8"))[
        "device"
    ]
    names = [name for device in devices for name in device["names"]]
    assert len(names) == len(set(names))
    assert set(names) == set(TABLE)
    for device in devices:
        known = {"names", "name_source", "dense_tflops", "memory_gb_per_s", "printed", "source", "date"}
        assert set(device) - {"clock_mhz", "link_gb_per_s"} == known
        assert set(device.get("clock_mhz", ("matrix", "vector"))) == {"matrix", "vector"}
        assert "https://" in device["source"]
        assert device["printed"] in ("dense", "sparse")
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", device["date"])
        assert set(device["dense_tflops"]) <= {"fp32", "tf32", "fp16", "bf16", "fp8"}
        figures = [*device["dense_tflops"].values(), device["memory_gb_per_s"]]
        assert all(isinstance(value, float) and value > 0 for value in figures)
