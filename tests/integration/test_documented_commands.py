"""Every command of README and of the pages for users runs as shown; what is printed beside it has that shape.

In `make test` a command that measures says what it would run (`--dry-run`), but for one of each page that
measures at a tiny size; the long tests have all of them measure. What answers is this machine's processor, a
simulated device, sshd on loopback, or a cluster of the tests.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest

from documented import (
    ROOT,
    Block,
    Command,
    blocks_of,
    difference,
    files_of,
    pages,
    text_of,
    unseen_commands,
    words_of,
)
from documented_place import TINY_RUN, make_place
from gpuproof.base.errors import ExitCode
from gpuproof.cli.main import cli
from kubernetes_world import kubernetes_world
from running import GAP, TIMEOUT_S, clean_environment
from simulating import needs_simulator
from slurm_world import needing_slurm, slurm_world
from ssh_hosts import Hosts, hosts_in
from sshd import ssh_world

ALL = [block for page in pages() for block in blocks_of(page)]
MEASURING = ("run", "load", "scale", "validate", "matrix", "compare --ab", "compare --aa", "selftest")
NOT_MEASURING = ("--dry-run", "--from", "--resume", "--prolog", "init prolog")
"""With these it launches nothing, or says so at once where there is no GPU."""
FOREVER = ("monitor live", "monitor serve")
"""These run until they are stopped: their own tests start and stop them, here their words are read."""
ENDPOINT = "--serving.endpoint.url"
"""There is no such server; `test_serving_endpoint` asks one of its own."""
LONG = ("gpuproof selftest", "exec --model", "record --duration 10", "show throttled")
"""These take long and have no `--dry-run`: in `make test` their words are read."""
SMALL: Mapping[str, tuple[str, ...]] = {
    "run serving": (
        *("--serving.rate_per_s=20", "--serving.window_s=1", "--serving.min_requests=5", "--run.repeats=1"),
        "--model.name=medium",
    ),
    "run collectives": ("-b", "8", "-e", "64", "-n", "2", "--nproc=2", "--run.repeats=1"),
    "run probe": ("--probe.name=fingerprint", "--nproc=2", "--probe.fingerprint.edge=64"),
    "run pruning": ("--benchmark.measure_steps=12", "--training.epochs=1", "--model.name=lenet5"),
    "run load": ("--load.num_batches=2", "--load.num_epochs=1", "--run.repeats=1"),
    "run": TINY_RUN,
    "load": ("--num-epochs=1", "--num-batches=2"),
    "scale": (
        *("--batch-sizes", "2", "--runs", "3", "--device=cpu", "--max-devices=2", "--model=medium"),
        *("--benchmark.measure_steps=5", "--benchmark.warmup_steps=1", "--scale.breakdown_runs=0"),
    ),
    "validate": (
        *("--model=medium", "--batch-size=4", "--active-iterations=5", "--warmup-iterations=1"),
        "--allow-cpu",
        *("--validate.stages=[gemm]", "--validate.gemm_size=64", "--validate.window_s=0.2"),
    ),
    "compare": ("--model.name=medium", "--data.name=synthetic", "--ab.pilot_pairs=3", "--max-pairs=3"),
    "matrix": (),
    "selftest": (),
}
"""What is put behind a command of each kind when it measures here; the first that it begins with."""
ONE_PROCESSOR = ("--nproc=1", "--distributed.nodes=1", "--distributed.device=cpu")
"""What a launch on a cluster of the tests asks for."""
MEASURED_AS: Mapping[str, Collection[int]] = {
    "validate": {ExitCode.INCONCLUSIVE},  # of a processor nothing is ready
    "compare --ab": {ExitCode.DONE, ExitCode.FAILED, ExitCode.INCONCLUSIVE},  # as chance has it
    "compare --aa": {ExitCode.DONE, ExitCode.FAILED, ExitCode.INCONCLUSIVE},
}
"""How a tiny launch on a processor may end, where the page shows what a GPU does."""
WITHOUT_GPU: Mapping[str, tuple[str, ...]] = {
    "validate": ("--allow-cpu",),
    "scale": ("--device=cpu", "--max-devices=2"),
}
"""What it takes to plan on a machine that has none; not for a command that names its device."""


@dataclass
class Places:
    """The folder in which commands run, and what answers them; a cluster starts when it is first named."""

    folder: Path
    stack: ExitStack
    environments: dict[str, Mapping[str, str]] = field(default_factory=dict)
    hosts: Hosts | None = None

    def environment(self, place: str) -> Mapping[str, str]:
        """Return the variables by which commands come to a place."""
        if place not in self.environments:
            self.environments[place] = self._start(place)
        return self.environments[place]

    def _start(self, place: str) -> Mapping[str, str]:
        beside = self.folder.parent / place
        if place == "slurm":
            needing_slurm()
            return self.stack.enter_context(slurm_world(beside)).environment
        if place == "kubernetes":
            world, environment = self.stack.enter_context(kubernetes_world(beside))
            world.nodes.append(NODE)
            return environment
        if place == "gpus":
            return {"GPUPROOF_FAKE_DEVICES": "2"}
        return {}

    def on_hosts(self, words: Sequence[str]) -> list[str]:
        """Return a command line that names hosts with two that there are: sshd on loopback."""
        if self.hosts is None:
            world = self.stack.enter_context(
                ssh_world(self.folder.parent / "servers", ("127.0.0.2", "127.0.0.3"))
            )
            self.hosts = hosts_in(world)
        inventory = self.hosts.write_inventory(self.folder / "inventory.json", self.hosts.world.servers)
        kept = list(words)
        for option in ("--deployment-file", "--ssh-key", "--on", "--expected-hosts"):
            while option in kept:
                del kept[kept.index(option) : kept.index(option) + 2]
        return [*kept, *inventory]


NODE = {
    "metadata": {"name": "gpu-node-7", "labels": {}},
    "spec": {},
    "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"nvidia.com/gpu": "8", "rdma/hca": "1"},
        "capacity": {"nvidia.com/gpu": "8", "rdma/hca": "1"},
    },
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("documented") / "a user's place"
        make_place(folder)
        yield Places(folder=folder, stack=stack)


def kind_of(text: str) -> str | None:
    """Return which kind of measurement a command is; None where it measures nothing."""
    rest = text.partition("gpuproof ")[2]
    if any(words in text for words in NOT_MEASURING):
        return None
    named = (kind for kind in MEASURING if f"{rest} ".startswith(f"{kind.partition(' ')[0]} "))
    return next((kind for kind in named if all(word in rest for word in kind.split())), None)


def runnable(command: Command, *, whole: bool) -> list[str]:
    """Return the words of a command as it is run here; one with its output beside it measures as typed."""
    words, kind = words_of(command.text), kind_of(command.text)
    rest = command.text.partition("gpuproof ")[2]
    if kind is None or (whole and command.printed is not None):
        return words
    if not whole:
        device = () if "--device" in rest else WITHOUT_GPU.get(kind, ())
        return [*words, *device, "--dry-run"]
    added = next(small for name, small in SMALL.items() if rest.startswith(name))
    return [*words, *(word for word in added if not ("--model" in word and "--model" in rest))]


def assert_parses(words: Sequence[str]) -> None:
    """Its words are those of a command of ours."""
    context = click.Context(cli, **cli.context_settings)
    command, rest = cli.get_command(context, words[3]), list(words[4:])
    while isinstance(command, click.Group):
        command, rest = command.get_command(context, rest[0]), rest[1:]
    assert command is not None, words
    command.make_context(words[3], rest, parent=context)


def run_block(block: Block, places: Places, *, whole: bool) -> None:
    """Run the commands of a block, and hold what they print against the page."""
    for name, content in files_of(block.page).items():
        (places.folder / name).write_text(content, encoding="utf-8")
    for number, command in enumerate(block.commands):
        if command.text.startswith("make "):
            assert f"\n{command.text.split()[1]}: " in (ROOT / "Makefile").read_text(encoding="utf-8")
            continue
        words = runnable(command, whole=whole)
        is_measuring = whole and kind_of(command.text) is not None and command.printed is None
        if is_measuring and ("ssh:" in command.text or "--deployment-file" in command.text):
            words = places.on_hosts(words)
            words += ["--device=cpu"] if kind_of(command.text) == "validate" else []
        if is_measuring and block.place in ("slurm", "kubernetes"):
            words += ["--device=cpu"] if kind_of(command.text) == "load" else ONE_PROCESSOR
        unstarted = (*FOREVER, ENDPOINT) if whole else (*FOREVER, *LONG)
        if any(name in command.text for name in unstarted):
            assert_parses(words_of(command.text))
            continue
        environment = clean_environment(**places.environment(block.place), **command.environment)
        ended = subprocess.run(
            words, cwd=places.folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        expected: Collection[int] = {ExitCode.DONE if words[-1] == "--dry-run" else block.exit_code(number)}
        if is_measuring:
            expected = MEASURED_AS.get(kind_of(command.text) or "", expected)
        elif whole:
            expected = {*expected, *MEASURED_AS.get(kind_of(command.text) or "", ())}
        assert_ended(block, command, ended, expected)
        if command.printed is not None and words == words_of(command.text):
            printed = f"{ended.stdout}{ended.stderr if not ended.stdout else ''}"
            printed += f"exit {ended.returncode}" if 'echo "exit $?"' in command.text else ""
            told = difference(command.printed, printed, folder=str(places.folder))
            assert told is None, f"{block}: {command.text}\n{told}\nIt printed:\n{printed}"


def assert_ended(
    block: Block, command: Command, ended: subprocess.CompletedProcess[str], expected: Collection[int]
) -> None:
    """It ended with the exit code of the page; a window of a few steps may hold nothing that counts."""
    text = f"{block}: {command.text}\n{ended.stdout}{ended.stderr}"
    assert "Traceback" not in ended.stderr, text
    if 'echo "exit $?"' in command.text:
        return
    if ended.returncode == ExitCode.INCONCLUSIVE and kind_of(command.text) and GAP in " ".join(text.split()):
        return
    assert ended.returncode in expected, text


def marks(block: Block) -> list[pytest.MarkDecorator]:
    """Return what a block needs."""
    return [needs_simulator] if "simgpu" in block.place or "simgpu" in str(block.commands) else []


@pytest.mark.parametrize("block", [pytest.param(block, id=str(block), marks=marks(block)) for block in ALL])
def test_block(block: Block, places: Places) -> None:
    run_block(block, places, whole=block.is_whole)


@pytest.mark.long
@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=str(block), marks=marks(block))
        for block in ALL
        if not block.is_whole and any(kind_of(command.text) for command in block.commands)
    ],
)
def test_block_measures(block: Block, places: Places) -> None:
    run_block(block, places, whole=True)


@pytest.mark.parametrize("page", pages())
def test_no_command_of_ours_stands_where_nothing_runs_it(page: str) -> None:
    assert unseen_commands(page) == []


def test_what_is_not_run_says_why() -> None:
    left_out = re.compile(r"^<!-- not run: (.*?) -->", re.MULTILINE)
    reasons = [reason for page in pages() for reason in left_out.findall(text_of(page))]
    assert all(len(reason) > 10 for reason in reasons)
    assert len(reasons) <= 15


def test_a_page_that_shows_something_else_is_found(places: Places) -> None:
    shown = Command(text="gpuproof config show nowhere", printed="whatever")
    with pytest.raises(AssertionError, match="nowhere"):
        run_block(Block(page="README.md", line=1, commands=(shown,)), places, whole=False)
    shown = Command(text="gpuproof --version", printed="gpuproof, edition 7")
    with pytest.raises(AssertionError, match="not printed"):
        run_block(Block(page="README.md", line=1, commands=(shown,)), places, whole=False)


@pytest.mark.parametrize("page", ["docs/start/first-run.md"])
def test_python_of_a_page(page: str, places: Places) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", text_of(page), re.M | re.S)
    overrides = dict(word.removeprefix("--").split("=") for word in TINY_RUN if word.startswith("--"))
    plain = re.compile(r"\d+|true|false")
    small = {key: json.loads(value) if plain.fullmatch(value) else value for key, value in overrides.items()}
    tiny = f"whole = gpuproof.run; gpuproof.run = lambda name, given: whole(name, {{**given, **{small!r}}})"
    result = subprocess.run(
        [sys.executable, "-c", f"import gpuproof\n{tiny}\n{block}"],
        cwd=places.folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "throughput" in result.stdout
