"""nvidia-smi's CSV log: fields in any order, with units or without, `[N/A]` for one GPU at one moment."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpuproof.readings.formats import load

CSV = """timestamp, index, name, uuid, \
utilization.gpu [%], memory.used [MiB], power.draw [W], temperature.gpu, \
pstate, clocks_throttle_reasons.active, memory.total [MiB]
2026/11/20 10:00:00.100, 0, NVIDIA A, GPU-a, 35 %, 1024 MiB, 70.50 W, 60, P0, 0x0000000000000024, 8192 MiB
2026/11/20 10:00:00.130, 1, NVIDIA A, GPU-b, [N/A], 10 MiB, [Not Supported], 61, P8, 0x01, 8192 MiB
2026/11/20 10:00:02.100, 0, NVIDIA A, GPU-a, 36 %, 2048 MiB, 71.50 W, 62, P0, 0x0000000000000000, 8192 MiB
2026/11/20 10:00:02.130, 1, NVIDIA A, GPU-b, 5 %, 11 MiB, 8
"""


def test_nvidia_smi_csv_field_by_field(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(CSV)
    data = load(tmp_path / "log.csv")
    assert data.format == "nvidia-smi"
    np.testing.assert_allclose(data.time_s, [0.0, 2.0])
    first, second = data.devices
    assert (first.identity.uuid, first.identity.name) == ("GPU-a", "NVIDIA A")
    assert first.identity.static["mem_total_bytes"] == 8192 * 2**20
    np.testing.assert_array_equal(first.metrics["util_gpu_percent"], [35.0, 36.0])
    np.testing.assert_array_equal(first.metrics["mem_used_bytes"], [2.0**30, 2.0**31])
    np.testing.assert_array_equal(first.metrics["power_w"], [70.5, 71.5])
    np.testing.assert_array_equal(first.metrics["pstate_level"], [0.0, 0.0])
    np.testing.assert_array_equal(first.throttle["thermal_software"], [True, False])
    np.testing.assert_array_equal(first.throttle["power_cap"], [True, False])
    np.testing.assert_array_equal(first.throttle_answered, [True, True])
    np.testing.assert_array_equal(second.metrics["temp_gpu_c"], [61.0, np.nan])
    assert not {"util_gpu_percent", "power_w"} & second.metrics.keys()
    assert data.notes == ("1 damaged line(s) left out",)


def test_nvidia_smi_csv_without_units_and_index(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(
        "timestamp, uuid, memory.used [MiB], power.draw [W]\n"
        "2026/11/20 10:00:00.000, GPU-b, 512, 70.5\n"
        "2026/11/20 10:00:00.010, GPU-a, 1024, [N/A]\n"
    )
    data = load(tmp_path / "log.csv")
    assert [track.identity.uuid for track in data.devices] == ["GPU-b", "GPU-a"]
    np.testing.assert_array_equal(data.devices[1].metrics["mem_used_bytes"], [2.0**30])
    np.testing.assert_array_equal(data.devices[0].metrics["power_w"], [70.5])
