"""How many damaged inputs cause a traceback? Randomly changes runs, recordings and inventories.

Copies recorded runs, their recordings, and inventories in both forms; removes, truncates, duplicates or
replaces a value, a line or bytes; reads each as the commands do. Prints how many were read, how many were
rejected in one paragraph, and every other outcome with its location; exits with 1 if there was one. Usage:
python benchmarks/hostile_inputs.py [RUNS] [RECORDINGS] [INVENTORIES]
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuproof.base.errors import GpuproofError, UsageError
from gpuproof.campaign.conclude import conclude
from gpuproof.comparison.page import recordings_page, recordings_result
from gpuproof.comparison.recordings import compare
from gpuproof.config.inventory import load_inventory
from gpuproof.config.settings import ConfigError
from gpuproof.observe.recording_page import recording_page, recording_result
from gpuproof.readings.formats import load
from gpuproof.readings.formats.exports import gpu_stats_rows, gputop_multi_gpu_samples, gputop_samples
from gpuproof.report.formats import FORMATS, ReportFormat, render
from gpuproof.store.run import RunDirectory

# the synthetic recordings are from the tests
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

import recordings as r

RUNS = Path(__file__).resolve().parents[1] / "tests" / "replay" / "runs"
FORMS: tuple[ReportFormat, ...] = ("terminal", "markdown", "html", "json", "csv", "junit")
ODD: tuple[Any, ...] = (
    *(None, -1, 0, 10**13, 10**400, float("inf"), float("nan"), 1e-300),
    *("x", "", "../../etc", "\x1b]0;x\x07", "\ud800"),
    *([], {}, True, [1, 2], {"a": 1}, [[]] * 3),
)
ODD_NUMBERS = (0, -1, 1, 2**40, 1e69, 1e300, 1e-69, 1e-300, -1e-9, float("nan"))
ODD_TEXTS = ("", "x", "a/b", ">", 1)
CHANGES = (5, 5, 10, 15, 65)
"""Percentage of changes in which a line is deeply nested, replaced by other bytes, truncated, removed, or has
one value changed."""
INVENTORIES = (
    "hosts:\n  - {host: 10.0.0.1, port: 2222, gpus: 8, price_per_hour: 2.5, key: ~/.ssh/id}\n  - host: b\n"
    "    user: me\ndefaults: {user: root}\ncurrency: EUR\n",
    json.dumps(
        {
            "timestamp": "2026-01-01",
            "instance_type": "gpu_1x_a10",
            "instances": [
                {"instance_ids": ["i-1"], "ip": "10.0.0.1", "gpus": 1},
                {"instance_ids": ["i-2", "i-3"]},
            ],
        },
        indent=1,
    ),
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value in JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*at, key)
        yield from places(item, (*at, key))


def mutated(value: Any, draw: random.Random) -> Any:
    """Remove a value from JSON, or replace it with an odd one."""
    known = list(places(value))
    if not known:
        return value
    *way, last = draw.choice(known)
    holder = value
    for key in way:
        holder = holder[key]
    if draw.random() < 0.3:
        del holder[last]
    else:
        holder[last] = draw.choice(ODD)
    return value


def damage(path: Path, draw: random.Random) -> None:
    """Change a value in a JSON or JSON Lines file, or remove, truncate, duplicate or replace a line."""
    if path.suffix == ".json":
        path.write_text(json.dumps(mutated(json.loads(path.read_text()), draw)))
        return
    lines = path.read_bytes().splitlines()
    place = draw.randrange(len(lines))
    line = lines[place]
    try:
        value = json.dumps(mutated(json.loads(line), draw)).encode()
    except (ValueError, RecursionError):  # it was already damaged
        value = line[1:]
    deep = b'{"kind": ' + b"[" * 5000 + b"]" * 5000 + b"}"
    changed = draw.choices(([deep], [b"\xff\x00{"], [line[: len(line) // 2]], [], [value]), weights=CHANGES)[
        0
    ]
    lines[place : place + 1] = [*changed, line] if draw.random() < 0.05 else changed
    path.write_bytes(b"\n".join(lines) + b"\n")


def damaged_text(text: str, draw: random.Random) -> bytes:
    """Truncate, duplicate or replace some characters of a text."""
    begin = draw.randrange(len(text))
    end = min(len(text), begin + draw.choice([0, 1, 1, 3, 10, 50]))
    odd = draw.choice(
        [
            "",
            ":",
            "- ",
            "{",
            "[" * 40,
            "'",
            "\t",
            "\x00",
            "&a ",
            "*a",
            "!!python/object:os.system ",
            "9" * 400,
        ]
    )
    changed = (text[:begin] + odd + text[end:]).encode()
    return changed + b"\xff" if draw.random() < 0.03 else changed


def end_of(read: Callable[[], object]) -> str:
    """Read something; return `read`, `refused`, or where any other exception was raised."""
    try:
        read()
    except GpuproofError as error:
        is_paragraph = "\n" not in str(error) or isinstance(error, ConfigError)
        return (
            "refused" if is_paragraph and int(error.exit_code) == 2 else f"refused otherwise: {error!r:.100}"
        )
    except Exception as error:  # noqa: BLE001  # what is counted here
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error!s:.80} at {frame.filename}:{frame.lineno}"
    return "read"


def run_ends(kind: str, number: int, *, seed: str = "") -> Iterator[str]:
    """Evaluate changed copies of a recorded run, and render each in every format."""
    draw, source = random.Random(f"{kind}{seed}"), RUNS / kind / "run"
    files = sorted(p.relative_to(source) for p in source.rglob("*.json*") if p.stat().st_size)
    described = [path for path in files if path.name == "run.json"]
    for _ in range(number):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder, "run")
            shutil.copytree(source, root)
            damage(root / draw.choice(described if draw.random() < 0.2 else files), draw)
            yield end_of(lambda root=root: _report(root))  # type: ignore[misc]  # bound for this copy


def _report(root: Path) -> None:
    concluded = conclude(RunDirectory.open(root))
    for form in FORMS:
        render(concluded.result, concluded.page, form)


def value_ends(kind: str, number: int | None = None) -> Counter[str]:
    """Evaluate a recorded run with an odd value in each field of its records and cases, or in a sample."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(shutil.copytree(RUNS / kind / "run", Path(folder, "run")))
        tried = list(_odd_values(root))
        if number is not None:
            tried = random.Random(kind).sample(tried, number)
        return Counter(_end_with(root, *each) for each in tried)


def _odd_values(root: Path) -> Iterator[tuple[Path, int, tuple[Any, ...], Any]]:
    """Yield file, line, path and odd value for the first occurrence of each field, in any launch."""
    seen: set[tuple[Any, ...]] = set()
    for path in sorted(root.glob("cases/*/*/*.json*")):
        for place, line in enumerate(_lines_of(path)):
            for way in places(line):
                value = _at(line, way)
                field = (path.suffix, line.get("kind"), *(key for key in way if isinstance(key, str)))
                if isinstance(value, dict | list | bool) or field in seen:
                    continue
                seen.add(field)
                odd = ODD_NUMBERS if isinstance(value, int | float) else ODD_TEXTS
                yield from ((path, place, way, other) for other in odd)


def _lines_of(path: Path) -> list[Any]:
    texts = [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines()
    return [json.loads(text) for text in texts]


def _at(value: Any, way: tuple[Any, ...]) -> Any:
    for key in way:
        value = value[key]
    return value


def _end_with(root: Path, path: Path, place: int, way: tuple[Any, ...], odd: Any) -> str:
    """Return the outcome with one odd value, and restore the file."""
    whole, lines = path.read_text(), _lines_of(path)
    _at(lines[place], way[:-1])[way[-1]] = odd
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    end = end_of(lambda: _report(root))
    path.write_text(whole)
    told = ".".join(map(str, (lines[place].get("kind", path.name), *way)))
    return end if end in ("read", "refused") else f"{end} ({told} = {odd!r})"


def recording_ends(number: int, *, seed: str = "") -> Iterator[str]:
    """Show changed recordings, compare each with the intact one, and write it in every format."""
    draw = random.Random(f"recordings{seed}")
    recorded = sorted(RUNS.glob("*/run/cases/*/*/monitor-*.jsonl"))[:5]
    for _ in range(number):
        with tempfile.TemporaryDirectory() as folder:
            two_gpus = r.write(Path(folder, "whole.jsonl"), _two_gpus())
            source = draw.choice([*recorded, *[two_gpus] * 5])
            path = Path(shutil.copy(source, Path(folder, "changed.jsonl")))
            for _ in range(draw.choice([1, 1, 3])):
                damage(path, draw)
            yield end_of(lambda path=path, source=source: _show(path, source))  # type: ignore[misc]  # as above


def _two_gpus() -> list[Any]:
    """Return half a minute of readings from two GPUs, with counters, phases and an end."""
    values = {
        "util_gpu_percent": 80.0,
        "power_w": 300.0,
        "temp_c": 60.0,
        "mem_used_bytes": 4.0e9,
        "clock_sm_mhz": 1500.0,
    }
    sampled = [
        r.sample(at, {0: values, 1: values}, reasons={0: ("sw_power_cap",)}, host={"cpu_percent": 20.0})
        for at in range(30)
    ]
    totals = [r.counters(at, when, {0: {"energy_j": 300.0 * at}}) for at, when in ((0, "start"), (29, "end"))]
    marks = [r.mark(2, phase="train", model="x"), r.mark(20, phase=None)]
    head = r.header([r.identity(0), r.identity(1)])
    return [head, totals[0], *sampled[:15], *marks, *sampled[15:], totals[1], r.end(30, samples=30)]


def _show(path: Path, source: Path) -> None:
    recording, whole = load(path), load(source)
    shown, compared = recording_result(recording), compare(whole, recording)
    for form in FORMATS:
        render(shown, recording_page(shown), form)
        render(recordings_result(compared), recordings_page(compared), form)
    json.dumps(list(gpu_stats_rows(recording, metadata={})), allow_nan=False)
    with suppress(UsageError):  # without a GPU or its dependencies, there is no gputop format for it
        json.dumps(list(gputop_samples(recording)), allow_nan=False)
        if len(recording.devices) > 1:
            json.dumps(list(gputop_multi_gpu_samples(recording)), allow_nan=False)


def inventory_ends(number: int, *, seed: str = "") -> Iterator[str]:
    """Read changed inventories in both forms."""
    draw = random.Random(f"inventories{seed}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "hosts.yaml")
        for _ in range(number):
            path.write_bytes(damaged_text(draw.choice(INVENTORIES), draw))
            yield end_of(lambda: load_inventory(str(path)))


def main(num_runs: int = 2000, num_recordings: int = 1400, num_inventories: int = 938) -> int:
    """Test this many inputs of each kind; return the exit code."""
    kinds = sorted(path.name for path in RUNS.iterdir())
    each = -(-num_runs // len(kinds))
    tried = {
        "run directories": Counter(end for kind in kinds for end in run_ends(kind, each)),
        "fields of records": sum((value_ends(kind) for kind in kinds), Counter()),
        "recordings": Counter(recording_ends(num_recordings)),
        "inventories": Counter(inventory_ends(num_inventories)),
    }
    for what, ends in tried.items():
        bad = {end: count for end, count in ends.items() if end not in ("read", "refused")}
        print(
            f"{what}: {ends.total()} tried, {ends['read']} read, {ends['refused']} rejected, "
            f"{sum(bad.values())} other"
        )
        for end, count in bad.items():
            print(f"  {count} × {end}")
    return int(any(set(ends) - {"read", "refused"} for ends in tried.values()))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
