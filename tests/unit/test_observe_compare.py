"""A against B: conditions first, then means, intervals and verdicts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recordings as rec
from concluding import figures_on
from gpuproof.base.errors import UsageError
from gpuproof.comparison.page import recordings_page, recordings_result
from gpuproof.comparison.recordings import READ_METRICS, RecordingComparison, compare
from gpuproof.readings.recording import RecordingData, load_recording
from gpuproof.readings.selection import Selected, newest_match, recordings_in
from gpuproof.records.result import Measure
from gpuproof.report.formats import FORMATS, ReportFormat, render

SAME = {"mig_mode": "off", "ecc_mode": "on"}


def noisy(
    folder: Path, name: str, *, power_w: float, seed: int, used_mib: float = 10240.0, **who: Any
) -> RecordingData:
    """Two hundred busy seconds with white noise of 5 W, after fifty idle ones at 60 W."""
    noise = np.random.default_rng(seed).normal(0, 5, 250)
    device = rec.identity()
    device = rec.identity(static={**device.static, **SAME}, **who)
    samples = [
        rec.sample(
            t,
            {
                0: {
                    "util_gpu_percent": 95.0 if t >= 50 else 0.0,
                    "power_w": (power_w if t >= 50 else 60.0) + float(noise[t]),
                    "power_limit_w": 400.0,
                    "mem_used_bytes": used_mib * 2**20,
                    "temp_gpu_c": 60.0,
                }
            },
        )
        for t in range(250)
    ]
    marks = [rec.mark(0, phase="load"), rec.mark(50, phase="train")]
    return rec.loaded(folder, [rec.header([device]), *marks, *samples], name=name)


def metric(comparison: RecordingComparison, name: str) -> Measure:
    return rec.compared(comparison, name)["B minus A"]


def means(comparison: RecordingComparison, name: str) -> list[float | None]:
    found = rec.compared(comparison, name)
    return [found[side].value for side in "AB"]


def text_of(comparison: RecordingComparison) -> str:
    return rec.text_of(recordings_page(comparison))


def test_a_real_difference_is_found_in_busy_time_only(tmp_path: Path) -> None:
    a = noisy(tmp_path, "a.jsonl", power_w=300.0, seed=1)
    b = noisy(tmp_path, "b.jsonl", power_w=310.0, seed=2)
    comparison = compare(a, b)
    power = metric(comparison, "power_w")
    assert comparison.comparable
    assert [measure.value for measure in comparison.sides[:3]] == [1.0, 249.0, 200.0]
    assert means(comparison, "power_w")[0] == pytest.approx(300.0, abs=1.5)  # 60 W of idling is not in it
    assert power.interval is not None
    assert power.interval.low < 10.0 < power.interval.high
    assert power.detail == "higher"
    assert metric(compare(b, a), "power_w").detail == "lower"
    assert metric(comparison, "mem_used_bytes").detail == "no difference shown"


@pytest.mark.promise("S4.16")
def test_less_memory_by_the_reported_share_is_told(tmp_path: Path) -> None:
    """The means of the reported finding: 1381.5 MiB of 1494 MiB."""
    before = noisy(tmp_path, "adam.jsonl", power_w=300.0, seed=1, used_mib=1494.0)
    after = noisy(tmp_path, "adamwprune.jsonl", power_w=300.0, seed=2, used_mib=1381.5)
    comparison = compare(before, after)
    assert metric(comparison, "mem_used_bytes").detail == "lower"
    first, second = means(comparison, "mem_used_bytes")
    assert first is not None
    assert second is not None
    assert 1 - second / first == pytest.approx(0.0753, abs=5e-5)


@pytest.mark.promise("F4.13")
def test_equal_recordings_rarely_differ(tmp_path: Path) -> None:
    """Fifteen pairs of equal load at 95 %: four false alarms or more have a chance under 0.6 %."""
    recordings = [noisy(tmp_path, f"{seed}.jsonl", power_w=300.0, seed=seed) for seed in range(30)]
    pairs = zip(recordings[::2], recordings[1::2], strict=True)
    alarms = sum(metric(compare(a, b), "power_w").detail != "no difference shown" for a, b in pairs)
    assert alarms < 4


def test_a_named_phase_is_compared_alone(tmp_path: Path) -> None:
    a = noisy(tmp_path, "a.jsonl", power_w=300.0, seed=1)
    b = noisy(tmp_path, "b.jsonl", power_w=310.0, seed=2)
    comparison = compare(a, b, phase_name="load")
    assert comparison.basis == "phase load"
    assert means(comparison, "power_w")[0] == pytest.approx(65.0, abs=6.5)
    with pytest.raises(UsageError, match="no phase 'eval'"):
        compare(a, b, phase_name="eval")


def of_host(
    folder: Path, name: str, *, busy: float, cpu: str | None = "EPYC", seed: int = 1
) -> RecordingData:
    """A hundred seconds without a GPU."""
    noise = np.random.default_rng(seed).normal(0, 1, 100)
    samples = [
        rec.sample(
            t,
            {},
            host={"cpu_percent": busy + float(noise[t]), "mem_available_bytes": 2.0**34, "load_1min": 1.0},
        )
        for t in range(100)
    ]
    facts = {} if cpu is None else {"cpu_model": cpu}
    records = [rec.header([], host_facts=facts), *samples]
    return load_recording(rec.write(folder / name, records), metrics=READ_METRICS)


def test_without_a_gpu_the_hosts_readings_are_compared(tmp_path: Path) -> None:
    a, b = of_host(tmp_path, "a.jsonl", busy=40.0), of_host(tmp_path, "b.jsonl", busy=60.0, seed=2)
    comparison = compare(a, b)
    assert metric(comparison, "cpu_percent").detail == "higher"
    assert means(comparison, "mem_available_bytes")[0] == 2.0**34
    text = text_of(comparison)
    assert "COMPARABLE: same CPU; there is no GPU on either side" in text
    assert "energy" not in text
    assert "GPU, driver" not in text


def test_what_nobody_recorded_of_the_host_is_not_called_the_same(tmp_path: Path) -> None:
    a, b = (of_host(tmp_path, f"{name}.jsonl", busy=40.0, cpu=None) for name in "ab")
    text = text_of(compare(a, b))
    assert "COMPARABLE AS FAR AS RECORDED" in text
    assert "host, CPU: not recorded against not recorded" in text


def test_a_host_is_not_compared_with_a_gpu(tmp_path: Path) -> None:
    comparison = compare(
        of_host(tmp_path, "a.jsonl", busy=40.0), noisy(tmp_path, "b.jsonl", power_w=300.0, seed=1)
    )
    assert not comparison.comparable
    assert means(comparison, "mem_used_bytes")[0] is None
    assert "cpu_percent" not in {found.labels["metric"] for found in comparison.means}


def test_too_few_readings_cannot_tell(tmp_path: Path) -> None:
    def short(name: str, power: float) -> RecordingData:
        samples = [rec.sample(t, {0: {"power_w": power, "util_gpu_percent": 99.0}}) for t in range(5)]
        return rec.loaded(tmp_path, [rec.header([rec.identity()]), *samples], name=name)

    comparison = compare(short("a.jsonl", 100.0), short("b.jsonl", 200.0))
    power = metric(comparison, "power_w")
    assert (means(comparison, "power_w"), power.detail) == ([100.0, 200.0], "cannot tell")
    assert power.missing is not None
    assert "too few values" in power.missing


def test_a_metric_that_one_side_lacks_cannot_be_told(tmp_path: Path) -> None:
    a = noisy(tmp_path, "a.jsonl", power_w=300.0, seed=1)
    samples = [rec.sample(t, {0: {"power_w": 300.0 + t % 3}}) for t in range(100)]
    b = rec.loaded(tmp_path, [rec.header([rec.identity()]), *samples], name="b.jsonl")
    comparison = compare(a, b)
    temperature = metric(comparison, "temp_gpu_c")
    assert comparison.basis.startswith("all readings")
    assert (temperature.detail, temperature.missing) == ("cannot tell", "not read in the second recording")


def test_every_unlike_condition_is_named(tmp_path: Path) -> None:
    a = noisy(tmp_path, "a.jsonl", power_w=300.0, seed=1)
    facts = {**rec.identity().static, **SAME}
    facts["driver_version"] = "9.9"
    del facts["ecc_mode"]
    other = rec.identity(name="Other GPU", uuid="GPU-ffff", static=facts)
    samples = [rec.sample(t, {0: {"power_w": 300.0, "power_limit_w": 250.0}}) for t in range(20)]
    b = rec.loaded(tmp_path, [rec.header([other], host="node8"), *samples], name="b.jsonl")
    comparison = compare(a, b)
    assert not comparison.comparable
    expected = [
        ("differs", "GPU 0, name", "Fake GPU 80", "Other GPU"),
        ("differs", "GPU 0, power limit", "400 W", "250 W"),
        ("differs", "GPU 0, driver version", "1.2.3", "9.9"),
        ("unknown", "GPU 0, ECC mode", "on", "not recorded"),
        ("note", "host, name", "node7", "node8"),
        ("note", "GPU 0, UUID", "GPU-0000", "GPU-ffff"),
    ]
    assert [(unlike.weight, unlike.key, unlike.a, unlike.b) for unlike in comparison.unlike] == expected
    assert "NOT COMPARABLE: these conditions differ" in text_of(comparison)
    assert "unknown: GPU 0, ECC mode: on against not recorded" in text_of(comparison)


def gpus(tmp_path: Path, name: str, num: int, *, hot: set[int], watts: float, driver: str) -> RecordingData:
    """Half a minute of several cards that draw so much; `hot` ones are held back in the last third."""
    static = {**rec.identity().static, "driver_version": driver}
    heads = [rec.identity(i, static=static, uuid=f"GPU-{name}-{i}", pci_bus_id=f"{i}") for i in range(num)]
    samples = [
        rec.sample(
            t,
            {i: {"util_gpu_percent": 95.0, "power_w": watts, "energy_j": watts * t} for i in range(num)},
            reasons={i: ("thermal_software",) if i in hot and t >= 20 else () for i in range(num)},
        )
        for t in range(31)
    ]
    return rec.loaded(tmp_path, [rec.header(heads), *samples], name=f"{name}.jsonl")


def test_energy_and_time_held_back_are_told_of_the_whole(tmp_path: Path) -> None:
    """Two cards of 300 and 330 W for 30 s; of B one is hot in 10 of 30 s, half of that over both."""
    a = gpus(tmp_path, "a", 2, hot=set(), watts=300.0, driver="1")
    b = gpus(tmp_path, "b", 2, hot={1}, watts=330.0, driver="1")
    comparison = compare(a, b)
    spent = {(m.name, m.labels.get("reason")): m.value for m in comparison.spent}
    assert (spent["energy, A", None], spent["energy, B", None]) == (18_000.0, 19_800.0)
    held = "throttled: software thermal slowdown"
    assert spent[f"{held}, A", "thermal_software"] == 0.0
    assert spent[f"{held}, B", "thermal_software"] == pytest.approx(11 / 62)
    lines = [" ".join(line.split()) for line in text_of(comparison).splitlines()]
    assert "energy 18.0 kJ (5.00 Wh) 19.8 kJ (5.50 Wh) +10 %" in lines
    assert "throttled: software thermal slowdown 0 % of the time 18 % of the time" in lines


def test_what_one_side_does_not_tell_is_unknown_and_not_never(tmp_path: Path) -> None:
    a = gpus(tmp_path, "a", 1, hot=set(), watts=300.0, driver="1")
    samples = [rec.sample(t, {0: {"util_gpu_percent": 95.0}}) for t in range(31)]
    b = rec.loaded(tmp_path, [rec.header([rec.identity()]), *samples], name="b.jsonl")
    comparison = compare(a, b)
    assert [m.value for m in comparison.spent if m.name in ("energy, B", "throttled, B")] == [None, None]
    text = text_of(comparison)
    assert "energy of B is not known: no energy counter" in text
    assert "throttled of B is not known: " in text


def test_a_difference_of_all_gpus_is_told_once(tmp_path: Path) -> None:
    a = gpus(tmp_path, "a", 4, hot=set(), watts=300.0, driver="1")
    b = gpus(tmp_path, "b", 4, hot=set(), watts=300.0, driver="2")
    found = {unlike.key.rpartition(", ")[2]: unlike for unlike in compare(a, b).unlike}
    assert len(found) == len(compare(a, b).unlike)
    driver, uuid = found["driver version"], found["UUID"]
    assert (driver.key, driver.a, driver.b) == ("GPUs 0, 1, 2, 3, driver version", "1", "2")
    assert (uuid.key, uuid.a, uuid.b, uuid.weight) == ("GPUs 0, 1, 2, 3, UUID", "one each", "others", "note")


def test_the_text_of_a_comparison_says_conditions_basis_and_limits(tmp_path: Path) -> None:
    a = noisy(tmp_path, "a.jsonl", power_w=300.0, seed=1)
    b = noisy(tmp_path, "b.jsonl", power_w=310.0, seed=2)
    lines = [" ".join(line.split()) for line in text_of(compare(a, b)).splitlines()]
    assert lines[0] == "COMPARABLE: same GPU, driver, power limit and clock limits"
    assert lines[2] == "b.jsonl against a.jsonl"
    assert "A a.jsonl 1 4 min 09 s 3 min 20 s" in lines
    assert "Means over busy time: GPU utilisation of at least 10 %" in lines
    power = next(line for line in lines if line.startswith("power"))
    assert power.split()[-1] == "higher"
    assert "they do not cover the" in lines[-2]


@pytest.mark.parametrize("form", FORMATS)
def test_every_figure_of_the_page_is_among_the_measures(tmp_path: Path, form: ReportFormat) -> None:
    a = noisy(tmp_path, "a.jsonl", power_w=300.0, seed=1)
    b = gpus(tmp_path, "b", 2, hot={1}, watts=330.0, driver="2")
    found = compare(a, b)
    result, page = recordings_result(found), recordings_page(found)
    shown = figures_on(page)
    assert {measure.name for measure in shown} == {measure.name for measure in result.measures}
    assert all(measure in result.measures for measure in shown)
    text = render(result, page, form)
    assert ("power, B" if form in ("json", "csv") else "330 W") in text or form == "junit"


def test_of_several_matches_the_newest_is_taken_and_named(tmp_path: Path) -> None:
    old, new = tmp_path / "gpu_stats_b.json", tmp_path / "gpu_stats_a.json"
    for age, path in enumerate((old, new)):
        path.write_text("[]", encoding="utf-8")
        os.utime(path, (1000 + age, 1000 + age))
    pattern = str(tmp_path / "gpu_stats_*.json")
    selected = newest_match(pattern)
    assert selected.path == new
    assert selected.note == f"{pattern} matches 2 recordings; using the newest, {new}"
    assert newest_match(str(old)).note is None
    (tmp_path / "gpu_stats_c_summary.txt").write_text("newer, and no recording", encoding="utf-8")
    source = tmp_path / "gpu_stats_a.jsonl"
    source.write_text("", encoding="utf-8")
    os.utime(source, (1001, 1001))
    assert newest_match(pattern).path == source  # what the array was made from
    (tmp_path / "gpu_stats_a_multi_gpu.json").write_text("[]", encoding="utf-8")
    assert newest_match(pattern).path == source  # gputop's second file of the same run
    assert newest_match(str(tmp_path)) == Selected(
        path=source, note=f"{tmp_path} matches 2 recordings; using the newest, {source}"
    )
    assert recordings_in(tmp_path) == [source, old]
    (tmp_path / "gpu_stats_a_plot.png").write_bytes(b"")
    as_a_shell_expands_it = (str(path) for path in sorted(tmp_path.glob("gpu_stats_*")))
    assert newest_match(*as_a_shell_expands_it).path == source
    with pytest.raises(UsageError, match=r"no recording matches it as a pattern\. Quote patterns"):
        newest_match(str(tmp_path / "none_*.json"))
