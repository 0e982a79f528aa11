"""Record small real runs of every kind for `tests/replay/test_exports.py`.

    python scripts/record_replay_runs.py                   every kind that is not recorded yet python
    scripts/record_replay_runs.py two_ranks load    re-record these python scripts/record_replay_runs.py
    --conclude        keep all runs, and only rewrite their exports

The recordings verify that runs of earlier versions can be read and that every derived file stays
byte-identical. So recordings are added, not replaced: for another schema of the records, add a kind with the
schema in its name. Export files may only change if the change is intended; read the diff, and mention the
change in CHANGELOG.md.

Needs Linux, root and openssh-server: hosts are named node0, node1, … through UTS namespaces, and fleets are
loopback addresses, each with its own sshd (tests/sshd.py). Runs are created in a separate folder; its path,
this checkout's path, the kernel's release and the boot id are replaced in all stored files. Prepared data and
derived files are omitted, and traces keep only their first durations.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "tests")]

from replay.exports import MEASURED, RECORDED, conclude_run, read_exports  # noqa: E402
from ssh_hosts import hosts_in  # noqa: E402
from sshd import SshWorld, ssh_world  # noqa: E402

FAULTY = REPOSITORY / "tests/fakes/faulty"
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MOST_TRACE_EVENTS = 700
ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")

ONE_CPU = ("--distributed.device=cpu", "--distributed.threads_per_rank=1", "--monitoring.interval_s=0.1")
STEPS = ("--benchmark.warmup_steps=2", "--benchmark.measure_by=steps")
SYNTHETIC = ("--model.name=medium", "--data.name=synthetic", "--data.batch_size=8")
MEDIUM = ("run", "quick", *ONE_CPU, *STEPS, *SYNTHETIC)
DIGITS = (
    *("run", "quick", *ONE_CPU, *STEPS, "--model.name=lenet5", "--data.name=digits"),
    *("--data.image_size=null", "--data.batch_size=16"),
)
FAULTY_MODEL = (
    *("run", "quick", *ONE_CPU, *STEPS, "--model.name=faulty", "--data.name=synthetic"),
    "--model.options.step_s=0.005",
)
SERVING = (
    *("run", "serving", *ONE_CPU, "--model.name=medium", "--serving.window_s=0.5"),
    *("--serving.min_requests=50", "--serving.max_batch=4"),
)
DECODER = (
    "--model.name=decoder",
    *(
        f"--model.options.{name}={value}"
        for name, value in {
            "d_model": 32,
            "num_layers": 2,
            "num_heads": 4,
            "num_kv_heads": 2,
            "d_ff": 48,
        }.items()
    ),
    "--model.options.vocab_size=50",
)
LOAD = ("load", "--quick", "--device=cpu", "--output=results.json")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a kind of run is created."""

    words: Sequence[str]
    hosts: int = 0
    """Number of hosts over SSH; 0 means a run on this machine."""
    dead_hosts: int = 0
    """Number of these hosts, counted from the last, that are unreachable."""
    host_keys: Mapping[str, object] | None = None


RECIPES: Mapping[str, Recipe] = {
    "training": Recipe(words=(*DIGITS, "--benchmark.measure_steps=150", "--run.repeats=3")),
    "one_rank": Recipe(
        words=(*MEDIUM, "--benchmark.measure_steps=40", "--run.repeats=1", "--training.optimizer=SGD")
    ),
    "two_ranks": Recipe(
        words=(
            *(*MEDIUM, "--benchmark.measure_steps=40", "--run.repeats=1", "--nproc=2"),
            *("--profiling.enabled=true", "--training.optimizer=SGD"),
        )
    ),
    "inference_latency": Recipe(
        words=(
            *(*MEDIUM, "--kind=inference", "--inference.mode=latency", "--data.batch_size=1"),
            *("--benchmark.measure_steps=300", "--run.repeats=2"),
        )
    ),
    "generation": Recipe(
        words=(
            *("run", "quick", *ONE_CPU, *STEPS, *DECODER, "--kind=inference", "--data.name=synthetic"),
            *("--inference.phase=decode", "--inference.prompt_tokens=8", "--inference.new_tokens=6"),
            *("--data.batch_size=2", "--benchmark.measure_steps=30", "--run.repeats=2"),
        )
    ),
    "sweep": Recipe(
        words=(
            *(*MEDIUM, "--matrix.data.batch_size=[4, 8]", '--matrix.training.precision=["fp32", "bf16"]'),
            *("--benchmark.measure_steps=30", "--run.repeats=2"),
        )
    ),
    "batch_limit": Recipe(
        words=(
            *(*FAULTY_MODEL, "--model.options.holds=13", "--search.kind=batch_size", "--search.start=4"),
            *("--benchmark.measure_steps=30", "--run.repeats=1"),
        )
    ),
    "load": Recipe(words=(*LOAD, "--num-batches=4")),
    "serving_search": Recipe(
        words=(
            *(*SERVING, "--model.name=simple_cnn", "--serving.window_s=0.15", "--serving.min_requests=90"),
            *("--serving.latency_bound_s=0.1", "--serving.search_precision=0.2"),
        )
    ),
    "serving_scenario": Recipe(
        words=(*SERVING, "--serving.scenario=closed_loop", "--serving.concurrency=3", "--run.repeats=2")
    ),
    "serving_tokens": Recipe(
        words=(
            *(*SERVING, *DECODER, "--serving.rate_per_s=60", "--serving.prompt_tokens=12"),
            "--serving.new_tokens=5",
        )
    ),
    "failed": Recipe(
        words=(
            *(*FAULTY_MODEL, "--model.options.fault=raise", "--model.options.unless_file=struck"),
            *("--benchmark.measure_steps=30", "--run.repeats=2"),
        )
    ),
    "fleet_recipe": Recipe(
        words=(*MEDIUM, "--benchmark.measure_steps=40", "--run.repeats=2"),
        hosts=2,
        host_keys={"gpu_type": "CPU"},
    ),
    "fleet_load": Recipe(
        words=(
            *("run", "load", "--distributed.device=cpu", "--distributed.threads_per_rank=1"),
            *("--load.num_epochs=1", "--load.num_batches=1", "--benchmark.warmup_steps=0"),
        ),
        hosts=3,
        dead_hosts=1,
    ),
    "fleet_sweep": Recipe(
        words=(
            *(*MEDIUM, "--matrix.data.batch_size=[2, 4]", "--benchmark.measure_steps=20"),
            "--run.repeats=1",
        ),
        hosts=2,
    ),
    "one_job": Recipe(
        words=(*DIGITS, "--benchmark.measure_steps=40", "--run.repeats=1", "--one-job"),
        hosts=2,
        host_keys={"interface": "lo"},
    ),
}


def main() -> None:
    """Record the kinds given on the command line, or those that are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(RECIPES))
    parser.add_argument("--conclude", action="store_true", help="rewrite the exports of recorded runs")
    options = parser.parse_args()
    if unknown := set(options.kinds) - set(RECIPES):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    if options.conclude:
        for kind in options.kinds or sorted(path.name for path in RECORDED.iterdir()):
            write_exports(RECORDED / kind)
        return
    for kind in options.kinds or [name for name in RECIPES if not (RECORDED / name).exists()]:
        record(kind, RECIPES[kind])


def record(kind: str, recipe: Recipe) -> None:
    """Create a run, and store its measurements and the files written when it is concluded."""
    with tempfile.TemporaryDirectory(prefix="gpuproof-replay-") as name:
        folder = Path(name)
        run = _run_on_hosts(folder, kind, recipe) if recipe.hosts else _run(folder, kind, recipe.words)
        kept = RECORDED / kind / "run"
        shutil.rmtree(kept.parent, ignore_errors=True)
        kept.mkdir(parents=True)
        for part in MEASURED:
            _keep(run / part, kept / part, folder)
    write_exports(kept.parent)
    size = sum(path.stat().st_size for path in kept.parent.rglob("*") if path.is_file())
    print(f"{kind}: {size / 1000:.0f} kB, exit code {(kept.parent / 'exit_code').read_text().strip()}")


def write_exports(recorded: Path) -> None:
    """Conclude a copy of a recorded run, and store its exports next to it."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        shutil.copytree(recorded / "run", run)
        exit_code = conclude_run(run)
        exports = read_exports(run)
    shutil.rmtree(recorded / "exports", ignore_errors=True)
    for file, content in exports.items():
        path = recorded / "exports" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (recorded / "exit_code").write_text(f"{exit_code}\n", encoding="utf-8")


def _run_on_hosts(folder: Path, kind: str, recipe: Recipe) -> Path:
    """Run a recipe on loopback addresses, each as a host with its own name."""
    with ssh_world(folder / "servers", []) as world:
        for number in range(recipe.hosts):
            world.add(ADDRESSES[number], prefix=_named(f"node{number + 1}")).wait_until_it_listens()
        inventory = hosts_in(world).write_inventory(
            folder / "hosts.json", world.servers, **(recipe.host_keys or {})
        )
        _end_last(world, recipe.dead_hosts)
        return _run(folder, kind, [*recipe.words, *inventory])


def _end_last(world: SshWorld, number: int) -> None:
    for server in world.servers[len(world.servers) - number :]:
        server.kill_host()


def _run(folder: Path, kind: str, words: Sequence[str]) -> Path:
    """Run `gpuproof WORDS` on a host named node0; return the run directory for any exit code."""
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    identity = [f"--run.run_id={kind}"] if words[0] == "run" else []
    command = [*_named("node0"), sys.executable, "-m", "gpuproof", *words, *identity]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**inherited, "PYTHONPATH": f"{REPOSITORY / 'src'}{os.pathsep}{FAULTY}"},
        check=False,
        capture_output=True,
        text=True,
    )
    runs = list((folder / "results").glob("*/*/run.json"))
    if len(runs) != 1:
        sys.exit(f"{shlex.join(words)} left {len(runs)} runs:\n{done.stdout}{done.stderr}")
    return runs[0].parent


def _named(host: str) -> list[str]:
    """Return the command prefix that gives a command and its children a separate host name."""
    return ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host]


def _keep(source: Path, target: Path, folder: Path) -> None:
    """Copy a file, or all files in a folder, without anything specific to this machine."""
    if source.is_dir():
        for path in sorted(source.iterdir()):
            _keep(path, target / path.name, folder)
        return
    replaced = {
        str(folder): "/runs",
        str(REPOSITORY): "/gpuproof",
        BOOT_ID.read_text(encoding="utf-8").strip(): "00000000-0000-4000-8000-000000000000",
        platform.release(): "6.8.0",
    }
    text = source.read_text(encoding="utf-8")
    for found, name in replaced.items():
        text = text.replace(found, name)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(_thinned(text) if source.name.startswith("trace") else text, encoding="utf-8")


def _thinned(trace: str) -> str:
    """Keep the first durations of a profiler's trace, without the arguments that take the most space."""
    durations = (event for event in json.loads(trace)["traceEvents"] if event["ph"] == "X")
    events = sorted(durations, key=lambda event: event["ts"])[:MOST_TRACE_EVENTS]
    for event in events:
        event["args"] = {key: event["args"][key] for key in ("External id",) if key in event.get("args", {})}
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    return f'{{"traceEvents":[\n{lines}\n]}}\n'


if __name__ == "__main__":
    main()
