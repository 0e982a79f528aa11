"""What all tests share: golden files, rewritten only when asked for."""

from __future__ import annotations

import compileall
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import preloaded
import pytest

Golden = Callable[[str, str], None]

# Several files of tests share the processors: threads that spin while they wait take them from the others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


preloaded.install()


def pytest_configure(config: pytest.Config) -> None:
    """Compile gpuproof once: where byte code is not kept, each process would do so again (0.1–0.3 s)."""
    if not hasattr(config, "workerinput"):  # before xdist starts its workers
        compileall.compile_dir(Path(__file__).parents[1] / "src", quiet=2)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden files from what the code prints now"
    )


@pytest.fixture(scope="session", autouse=True)
def server_of_commands() -> Iterator[None]:
    """End, after the last test, the process from which commands were forked."""
    yield
    preloaded.stop_server()


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Heed Ctrl-C, as commands that tests start do then: what a shell starts in its background ignores it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
