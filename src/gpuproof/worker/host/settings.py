"""How is this host configured? Reads the facts that `records/host_facts.csv` lists, without root.

In: the root directory below which files are read. Out: for each fact, its value as text, or None with the
reason why it is missing. A container sees its host's kernel but only its own processes; facts that it cannot
see are missing.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import sleep
from typing import Any

from gpuproof.base.files import packaged_rows

TABLE = "records/host_facts.csv"
UNKEPT_CLOCK_US = 16_000_000
"""Maximum clock error that the kernel reports, which it reaches only if nothing has synchronised the clock
for a long time. systemd also uses this rather than STA_UNSYNC, which stays set under chrony without rtcsync
(systemd bca5a0ea)."""
TIMEX_LONGS = 32
"""Length of a buffer that is larger than `struct timex`. With all zeros, the call is a query that changes
nothing; the fourth long is the error in µs."""
SECOND_LOOK_S = 0.1
NVIDIA_LIBRARY = re.compile(r"lib(cuda|nvidia-.*|nvcuvid|nvoptix)\.so(\..*)?")
SHOWN = 5


def clock_error_us() -> int:
    """Query the kernel for its clock's maximum error in microseconds (adjtimex); -1 if denied."""
    timex = (ctypes.c_long * TIMEX_LONGS)()
    return -1 if ctypes.CDLL(None).adjtimex(timex) < 0 else int(timex[3])


def host_settings(
    environment: Mapping[str, str],
    devices: Sequence[Mapping[str, Any]] = (),
    *,
    root: Path = Path("/"),
    clock: Callable[[], int] = clock_error_us,
) -> dict[str, dict[str, str | None]]:
    """Return each fact in the table: its `value`, or None with the reason under `missing`.

    `devices` are the GPUs as listed by their drivers (`devices/describe.py`).
    """
    readers: dict[str, Callable[[str], str]] = {
        "text": lambda place: _first_line(root / place),
        "values": lambda places: _values(root, places),
        "match": lambda place: _match(root, *place.split(maxsplit=1)),
        "running": lambda name: _running(root / "proc", name),
        "blocked": lambda place: _blocked(root / place),
        "clock": lambda _: _clock(clock()),
        "driver": lambda fact: _of_drivers(devices, fact),
        "temperature": lambda _: _temperature(devices),
        "variable": lambda name: _named_file(root, environment.get(name)),
        "empty": lambda places: _empty(_matches(root, places)),
        "root": _refuse,
    }
    return {row["name"]: _fact(readers[row["read"]], row["place"] or "") for row in packaged_rows(TABLE)}


def _fact(read: Callable[[str], str], place: str) -> dict[str, str | None]:
    try:
        return {"value": read(place), "missing": None}
    except (OSError, ValueError, AttributeError) as error:  # AttributeError: a system without adjtimex
        return {"value": None, "missing": getattr(error, "strerror", None) or str(error)}


def _refuse(_place: str) -> str:
    raise ValueError("reading it needs root, and gpuproof reads nothing as root")


def _first_line(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip("\0 ")


def _matches(root: Path, places: str) -> Iterator[Path]:
    return (path for place in places.split() for path in root.glob(place))


def _values(root: Path, places: str) -> str:
    """Return the values of all matches; empty if the parent folder exists but has no matches."""
    values = {_first_line(path) for path in _matches(root, places)}
    if not values and not any(
        (root / re.split(r"/[^/]*[*[]", place)[0]).is_dir() for place in places.split()
    ):
        raise ValueError("not visible here")
    return ", ".join(sorted(values)) or "none"


def _match(root: Path, place: str, pattern: str) -> str:
    match = re.search(pattern, (root / place).read_text(encoding="utf-8", errors="replace"), re.M)
    if match is None:
        raise ValueError(f"{place} does not contain it")
    return match[1]


def _processes(proc: Path) -> dict[tuple[str, str], str]:
    """Return the state of each process that is visible here, keyed by PID and name."""
    states: dict[tuple[str, str], str] = {}
    for path in proc.glob("[0-9]*/stat"):
        try:
            number, _, rest = path.read_text(encoding="utf-8", errors="replace").partition(" (")
        except OSError:  # it exited in the meantime
            continue
        name, _, after = rest.rpartition(") ")
        states[number, name] = after[:1]
    if not states:
        raise ValueError("no process is visible")
    return states


def _running(proc: Path, name: str) -> str:
    """Return whether a process with this name is visible; the kernel keeps only 15 characters."""
    names = {process for _, process in _processes(proc)}
    return "running" if name[:15] in names else "no such process is visible"


def _blocked(proc: Path) -> str:
    """Count processes blocked in the kernel in two successive samples, to ignore short disk reads."""
    blocked = {process for process, state in _processes(proc).items() if state == "D"}
    if blocked:
        sleep(SECOND_LOOK_S)
        blocked &= {process for process, state in _processes(proc).items() if state == "D"}
    names = ", ".join(f"{name} ({number})" for number, name in sorted(blocked)[:SHOWN])
    return f"{len(blocked)}: {names}" if blocked else "0"


def _clock(error_us: int) -> str:
    if error_us < 0:
        raise ValueError("the kernel denies adjtimex here")
    return "not synchronised" if error_us >= UNKEPT_CLOCK_US else "synchronised"


def _of_drivers(devices: Sequence[Mapping[str, Any]], fact: str) -> str:
    values = {str(value) for device in devices if (value := device["static"].get(fact)) is not None}
    if not values:
        raise ValueError("no driver reports it")
    return ", ".join(sorted(values))


def _temperature(devices: Sequence[Mapping[str, Any]]) -> str:
    """Report how hot the GPUs are, and whether one has reached the maximum that its driver reports."""
    pairs = [(device["state"].get("temp_gpu_c"), device["static"].get("temp_max_c")) for device in devices]
    if not pairs or None in {number for pair in pairs for number in pair}:
        raise ValueError("not every driver reports temperature and maximum")
    low, high = min(degrees for degrees, _ in pairs), max(degrees for degrees, _ in pairs)
    seen = f"{low:g} to {high:g} °C, a spread of {high - low:g} K" if len(pairs) > 1 else f"{high:g} °C"
    return seen + ("; a GPU reached its maximum" if any(degrees >= most for degrees, most in pairs) else "")


def _named_file(root: Path, name: str | None) -> str:
    if not name:
        return "not set"
    path = root / name.lstrip("/")
    return name if path.is_file() and path.stat().st_size else f"{name}: missing or empty"


def _empty(paths: Iterator[Path]) -> str:
    """List NVIDIA libraries that are empty files: these mislead tools that check only for existence."""
    libraries = sorted(path for path in paths if NVIDIA_LIBRARY.fullmatch(path.name) and path.is_file())
    if not libraries:
        raise ValueError("there are no NVIDIA libraries")
    return ", ".join([path.name for path in libraries if not path.stat().st_size][:SHOWN]) or "none"
