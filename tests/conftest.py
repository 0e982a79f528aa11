"""What all tests share: golden files, rewritten only when asked for."""

from __future__ import annotations

import compileall
import json
import multiprocessing
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

import hanging
import preloaded

TESTS = Path(__file__).parent
SECONDS = TESTS / "seconds.json"
Golden = Callable[[str, str], None]

# Several files of tests share the CPUs: threads that spin while they wait take them from the others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Examples are the same in every run, and none is refused for what a busy machine took to make it.
settings.register_profile(
    "seeded", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("seeded")

preloaded.install()


def pytest_configure(config: pytest.Config) -> None:
    """Compile gpuproof and its tests once, before the workers start: each would do so again.

    Where byte code is not kept, gpuproof takes each process 0.1–0.3 s of that, and the tests a worker 19 s.
    """
    if hasattr(config, "workerinput"):
        return
    compileall.compile_dir(TESTS.parent / "src", quiet=2)
    if config.getoption("numprocesses", None):
        shares = os.cpu_count() or 1
        forking = multiprocessing.get_context("fork")
        files = sorted(TESTS.rglob("*.py"))
        compilers = [
            forking.Process(target=_compile_tests, args=(config, files[n::shares])) for n in range(shares)
        ]
        for compiler in compilers:
            compiler.start()
        for compiler in compilers:
            compiler.join()


def _compile_tests(config: pytest.Config, files: Sequence[Path]) -> None:
    """Keep the tests' byte code as pytest looks for it: with what a failed assertion shows."""
    for path in files:
        kept = rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"
        if not path.name.startswith("test_"):
            compileall.compile_file(path, quiet=2)
        elif rewrite.try_makedirs(kept.parent) and rewrite._read_pyc(path, kept) is None:
            stat, code = rewrite._rewrite_test(path, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, stat, kept)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[Any], list[Any]]:
    """Look for no examples in a test file that has none: each worker of xdist collects all of them."""
    collectors = yield
    has_examples = b">>> " in file_path.read_bytes()
    return [x for x in collectors if has_examples or not isinstance(x, DoctestModule)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, as far as it is known, so that none is left over at the end."""
    seconds = json.loads(SECONDS.read_text(encoding="utf-8")) if SECONDS.is_file() else {}
    items.sort(key=lambda item: -float(seconds.get(_path(item.nodeid), 0.0)))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which tests took longest, and how long each folder of them took, on all workers together."""
    by_test: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                by_test[report.nodeid] += report.duration
    by_file, by_folder = _summed(by_test, _path), _summed(by_test, _folder)
    terminalreporter.section("the ten slowest tests")
    for test, duration_s in sorted(by_test.items(), key=lambda item: -item[1])[:10]:
        terminalreporter.write_line(f"{duration_s:7.1f} s  {test}")
    terminalreporter.section("time of the tests, by folder")
    for folder, duration_s in sorted(by_folder.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{duration_s:7.1f} s  {folder}")
    if config.getoption("--write-seconds"):
        known = {path: round(duration_s) for path, duration_s in sorted(by_file.items()) if duration_s >= 2}
        SECONDS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def _summed(by_test: Mapping[str, float], part: Callable[[str], str]) -> dict[str, float]:
    sums: defaultdict[str, float] = defaultdict(float)
    for test, duration_s in by_test.items():
        sums[part(test)] += duration_s
    return dict(sums)


def _path(test: str) -> str:
    return test.partition("::")[0]


def _folder(test: str) -> str:
    return "/".join(_path(test).split("/")[:-1][:2])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say, of a test that waited in vain, what hangs."""
    report = yield
    if call.excinfo is not None and hanging.is_in_vain(call.excinfo.value):
        folder = getattr(item, "funcargs", {}).get("tmp_path")
        report.sections.append(("what hangs", hanging.what_hangs(folder)))
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden files from what the code prints now"
    )
    parser.addoption(
        "--write-seconds",
        action="store_true",
        help="write how long each file took, for the order of the next run",
    )


@pytest.fixture(scope="session", autouse=True)
def server_of_commands() -> Iterator[None]:
    """End, after the last test, the process from which commands were forked."""
    yield
    preloaded.stop_server()


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Heed Ctrl-C and Ctrl-\\, as commands that tests start do then: a shell's background ignores both."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare text with the file of that name beside the test; a missing file fails like a wrong one."""
    folder = Path(request.path).parent
    update = bool(request.config.getoption("--update-golden"))

    def compare(name: str, text: str) -> None:
        path = folder / name
        if update:
            path.write_text(text, encoding="utf-8")
        if not path.is_file():
            pytest.fail(f"{path} is missing; write it with: pytest {folder} --update-golden")
        assert text == path.read_text(encoding="utf-8"), f"{name} differs; if meant: pytest --update-golden"

    return compare
