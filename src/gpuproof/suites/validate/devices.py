"""What was read of each device beside training: how busy and how hot it was, by its UUID.

One figure a device over all launches of a stage: the lowest mean utilisation, and the highest temperature.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuproof.launches.explanations import explain_launch
from gpuproof.readings.evidence import Evidence
from gpuproof.readings.window_readings import DeviceWindow
from gpuproof.records.result import Measure
from gpuproof.suites.validate.measured import StageResult

STAGES = ("training", "soak")
FIGURES = (
    ("utilisation", "util_gpu_percent", "%", min, "higher", "lowest of the means of launches"),
    ("temperature", "temp_gpu_max_c", "°C", max, "lower", "highest in any window"),
)


def device_measures(results: Iterable[StageResult], evidence: Evidence) -> Iterator[Measure]:
    """Yield the utilisation and the temperature of each device that training used, where they were read."""
    windows: dict[tuple[str, str], list[DeviceWindow]] = {}
    for result in results:
        if result.stage.name in STAGES:
            for name, window in _windows(result, evidence):
                windows.setdefault((result.stage.name, name), []).append(window)
    for (stage, subject), read in windows.items():
        for name, field, unit, choose, better, statistic in FIGURES:
            values = [value for window in read if (value := getattr(window, field)) is not None]
            value = choose(values) if values else None
            yield Measure(
                name=name,
                value=value,
                unit=unit,
                text="–" if value is None else f"{value:,.0f} {unit}",
                subject=subject,
                case=stage,
                statistic=statistic,
                labels={"stage": stage, "device": read[0].name},
                better="higher" if better == "higher" else "lower",
                num_samples=len(values),
                missing=None if values else "the device does not report it",
            )


def _windows(concluded: StageResult, evidence: Evidence) -> Iterator[tuple[str, DeviceWindow]]:
    for launch in concluded.summaries:
        if launch.case.monitor is None:
            continue
        for read in explain_launch(launch, evidence).readings:
            host = launch.case.placement.host or read.host
            for device in read.readings.devices:
                yield f"host/{host}/gpu/{device.uuid or device.physical_index}", device
