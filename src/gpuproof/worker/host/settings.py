"""How is this host set up? The facts that `records/host_facts.csv` lists, read without root.

In: the root below which files are read. Out: by fact its value as text, or None with the reason it is
missing. A container sees the kernel of its host and its own processes alone; what it cannot see is missing.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import sleep

from gpuproof.base.files import packaged_rows

TABLE = "records/host_facts.csv"
NEEDS_ROOT = "reading it needs root"
TIME_ERROR = 5
"""What adjtimex returns of a clock that nothing keeps: https://man7.org/linux/man-pages/man2/adjtimex.2.html."""
TIMEX_BYTES = 256
"""More than `struct timex` (208 bytes on 64-bit Linux); zeros in it ask and change nothing."""
SECOND_LOOK_S = 0.1
NVIDIA_LIBRARY = re.compile(r"lib(cuda|nvidia-.*|nvcuvid|nvoptix)\.so(\..*)?")
SHOWN = 5


def host_settings(
    environment: Mapping[str, str],
    *,
    root: Path = Path("/"),
    clock_state: Callable[[], int] | None = None,
) -> dict[str, dict[str, str | None]]:
    """Return each fact of the table: its `value`, or None and under `missing` why.

    `clock_state` asks the kernel for the state of its clock (adjtimex): by default where `root` is `/`.
    """
    ask = clock_state or (_clock_state if root == Path("/") else None)
    readers: dict[str, Callable[[str], str]] = {
        "text": lambda place: _first_line(root / place),
        "chosen": lambda place: _first_line(root / place).partition("[")[2].partition("]")[0],
        "values": lambda place: _values(root, place),
        "count": lambda place: str(len(list(_matches(root, place)))),
        "field": lambda place: _field(root, place),
        "running": lambda place: _running(root, place),
        "blocked": lambda place: _blocked(root / place),
        "clock": lambda place: _clock(root / place, ask),
        "variable": lambda name: _named_file(root, environment.get(name)),
        "empty": lambda place: _empty(root, place),
        "package": lambda name: _package(root / "var/lib/dpkg/status", name),
        "root": _refuse,
    }
    return {row["name"]: _fact(readers[row["read"]], row["place"] or "") for row in packaged_rows(TABLE)}


def _fact(read: Callable[[str], str], place: str) -> dict[str, str | None]:
    try:
        return {"value": read(place), "missing": None}
    except (OSError, ValueError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return {"value": None, "missing": reason}


def _refuse(_place: str) -> str:
    raise ValueError(NEEDS_ROOT)


def _first_line(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip("\0 ")


def _matches(root: Path, places: str) -> Iterator[Path]:
    for place in places.split():
        yield from root.glob(place)


def _values(root: Path, places: str) -> str:
    """Return the values of all that match; none where the folder above them is there without any."""
    values = {_first_line(path) for path in _matches(root, places)}
    if not values and not any(
        (root / place.partition("[")[0].partition("*")[0]).parent.is_dir() for place in places.split()
    ):
        raise ValueError("not visible here")
    return ", ".join(sorted(values)) or "none"


def _field(root: Path, place: str) -> str:
    path, name = place.split()
    lines = (line.split() for line in (root / path).read_text(encoding="utf-8").splitlines())
    value = next((words[1] for words in lines if words[:1] == [name]), None)
    if value is None:
        raise ValueError(f"this kernel does not count {name}")
    return value


def _processes(proc: Path) -> Iterator[tuple[str, str, str]]:
    """Yield number, name and state of each process that is visible here."""
    for path in proc.glob("[0-9]*/stat"):
        try:
            number, _, rest = path.read_text(encoding="utf-8", errors="replace").partition(" (")
        except OSError:  # it ended meanwhile
            continue
        name, _, after = rest.rpartition(") ")
        yield number, name, after[:1]


def _running(root: Path, name: str) -> str:
    """Say whether a process of this name is visible; the kernel keeps 15 characters of a name."""
    names = [process for _, process, _ in _processes(root / "proc")]
    if not names:
        raise ValueError("no process is visible")
    return "running" if name[:15] in names else "no such process is visible"


def _blocked(proc: Path) -> str:
    """Count the processes that wait in the kernel at two looks: one that only reads a disk is none."""
    first = {number: name for number, name, state in _processes(proc) if state == "D"}
    if first:
        sleep(SECOND_LOOK_S)
        still = {number for number, _, state in _processes(proc) if state == "D"}
        first = {number: name for number, name in first.items() if number in still}
    elif not any(_processes(proc)):
        raise ValueError("no process is visible")
    named = ", ".join(f"{name} ({number})" for number, name in list(first.items())[:SHOWN])
    return f"{len(first)}: {named}" if first else "0"


def _clock_state() -> int:
    return int(ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES)))


def _clock(path: Path, ask: Callable[[], int] | None) -> str:
    """Say whether the kernel's clock is kept; systemd-timesyncd leaves a file where it did."""
    if ask is None:
        path.stat()
        return "synchronised"
    state = ask()
    if state < 0:
        raise ValueError("the kernel refuses adjtimex here")
    return "not synchronised" if state == TIME_ERROR and not path.exists() else "synchronised"


def _named_file(root: Path, name: str | None) -> str:
    if not name:
        return "not set"
    path = root / name.lstrip("/")
    size = path.stat().st_size if path.is_file() else None
    return f"{name}: {'not there' if size is None else 'empty'}" if not size else name


def _empty(root: Path, places: str) -> str:
    """Name NVIDIA's libraries that exist and have no byte: tools that only look for them find them."""
    libraries = [path for path in _matches(root, places) if NVIDIA_LIBRARY.fullmatch(path.name)]
    if not libraries:
        raise ValueError("there is no library of NVIDIA's")
    empty = sorted(path.name for path in libraries if path.is_file() and not path.stat().st_size)
    return ", ".join(empty[:SHOWN]) or "none"


def _package(status: Path, name: str) -> str:
    """Return the version of an installed package of Debian's or Ubuntu's."""
    text = status.read_text(encoding="utf-8", errors="replace")
    found = re.search(
        rf"^Package: {re.escape(name)}\nStatus: .* installed\n(?:.+\n)*?Version: (\S+)", text, re.M
    )
    if found is None:
        raise ValueError("it is not installed as a package")
    return found[1]
