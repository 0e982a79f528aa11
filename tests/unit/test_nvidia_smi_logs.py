"""nvidia-smi's other logs, dmon and XML, and outputs of tools that do not say when a reading was taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuproof.base.errors import RecordError
from gpuproof.readings.formats import load

DMON = """#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk     fb
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %    MHz    MHz     MB
 20261120   10:00:00      0     70     48      -     35      1   7000   1350   1024
 20261120   10:00:00      1     71     49      -     36      1   7000   1351   1024
 20261120   10:00:01      0     72     50      -     37      1   7000   1352   1024
 20261120   10:00:01      1     73
"""
QUERY = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <timestamp>Fri Nov 20 10:00:0{second} 2026</timestamp>
  <gpu id="00000000:41:00.0">
    <product_name>NVIDIA A</product_name><uuid>GPU-a</uuid><fan_speed>N/A</fan_speed>
    <performance_state>P0</performance_state>
    <fb_memory_usage><total>8192 MiB</total><reserved>1 MiB</reserved><used>1024 MiB</used></fb_memory_usage>
    <utilization><gpu_util>35 %</gpu_util><memory_util>[GPU requires reset]</memory_util></utilization>
    <temperature><gpu_temp>48 C</gpu_temp><memory_temp>N/A</memory_temp></temperature>
    <gpu_power_readings><average_power_draw>70.50 W</average_power_draw></gpu_power_readings>
    <clocks><sm_clock>1350 MHz</sm_clock><mem_clock>7000 MHz</mem_clock></clocks>
  </gpu>
</nvidia_smi_log>
"""


def test_a_log_of_dmon_has_the_units_of_its_second_line(tmp_path: Path) -> None:
    (tmp_path / "dmon.txt").write_text(DMON)
    data = load(tmp_path / "dmon.txt")
    assert data.format == "nvidia-smi dmon"
    np.testing.assert_allclose(data.time_s, [0.0, 1.0])
    first, second = data.devices
    np.testing.assert_array_equal(first.metrics["power_w"], [70.0, 72.0])
    np.testing.assert_array_equal(first.metrics["temp_gpu_c"], [48.0, 50.0])
    np.testing.assert_array_equal(first.metrics["util_gpu_percent"], [35.0, 37.0])
    np.testing.assert_array_equal(first.metrics["clock_sm_mhz"], [1350.0, 1352.0])
    np.testing.assert_array_equal(second.metrics["clock_sm_mhz"], [1351.0, np.nan])
    # "MB" is not documented to be MiB, and a temperature of memory was not there.
    assert not {"mem_used_bytes", "temp_mem_c"} & first.metrics.keys()
    reasons = {**data.unavailable[0].reasons}
    assert reasons["mem_used_bytes"] == "the file has a number in MB, which is not a unit of this field"
    assert reasons["temp_mem_c"] == "the file has [N/A]"
    assert data.notes == ("1 damaged line(s) skipped",)


def test_a_log_in_xml_is_read_moment_by_moment(tmp_path: Path) -> None:
    whole = "".join(QUERY.replace("{second}", str(second)) for second in (0, 5))
    (tmp_path / "q.xml").write_text(whole + whole[:400])
    data = load(tmp_path / "q.xml")
    assert data.format == "nvidia-smi -q -x"
    np.testing.assert_allclose(data.time_s, [0.0, 5.0])
    (track,) = data.devices
    assert (track.identity.uuid, track.identity.name) == ("GPU-a", "NVIDIA A")
    assert track.identity.static["mem_total_bytes"] == 8192 * 2**20
    for metric, value in (("mem_used_bytes", 2.0**30), ("power_w", 70.5), ("clock_sm_mhz", 1350.0)):
        np.testing.assert_array_equal(track.metrics[metric], [value, value])
    assert [event.event for event in data.events] == ["reset due"]
    assert data.notes == ("1 damaged document(s) skipped",)
    (tmp_path / "q.xml").write_text('<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>')
    with pytest.raises(RecordError, match="its XML contains entities"):
        load(tmp_path / "q.xml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "# gpu   pwr gtemp\n# Idx     W     C\n    0    70    48\n",
            "nvidia-smi dmon log without date and time",
        ),
        ('{"card0": {"GPU use (%)": "12"}}', "looks like output of rocm-smi"),
        ("device,GPU use (%)\ncard0,12\n", "looks like output of rocm-smi"),
        (
            '[{"gpu": 0, "usage": {"gfx_activity": {"value": 37, "unit": "%"}}}]',
            "looks like output of amd-smi",
        ),
        (
            '{"gpu_data": [{"gpu": 0, "usage": {"gfx_activity": {"value": 3}}}]}',
            "looks like output of amd-smi",
        ),
        ("gpu,gfx_activity\n0,12\n", "looks like output of amd-smi"),
        ("#Entity   GPUTL   POWER\nID\nGPU 0     42   175\n", "looks like output of dcgmi dmon"),
    ],
)
def test_what_says_no_time_is_named_with_what_records_one(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "log").write_text(text)
    with pytest.raises(RecordError, match=message) as refused:
        load(tmp_path / "log")
    assert refused.value.next_step is not None
    assert "gpuproof monitor record" in refused.value.next_step or "dmon -o DT" in refused.value.next_step
