"""`gpuproof validate --prolog`: check a single node within a fixed time, and print one line.

Input: what to measure, and the total time in seconds. Output: a line and an exit code. No scheduler is
queried, and variables that launchers left in the environment are ignored. Launches are stopped a few seconds
before the deadline, so that they can be evaluated; anything that still hangs at that time, perhaps in a
driver, is left running.
"""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from gpuproof.base.errors import EnvironmentUnfitError, ExitCode, GpuproofError, UsageError
from gpuproof.cli.gates.counts import MissingGpusError, silent_driver
from gpuproof.processes.scratch import scratch_folder

if TYPE_CHECKING:
    from gpuproof.store.run import RunDirectory

BUDGET_S = 30.0
MARGIN_S = 5.0
"""Time reserved at the end: for final records of launches that are cut off, and for the verdict."""
LEAST_S = 2 * MARGIN_S
PROBE_S = 10.0
"""Maximum time for querying the drivers; a third of the total time if that is longer."""
NEVER_ENDS = "could not judge: the time limit passed and something hangs, perhaps a driver"
Planned = tuple[str, list[str]]
"""A recipe, and the arguments that set its keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """How a node is checked, and the time limit for the check."""

    plan: Callable[[int], Planned]
    """Function that is called with the number of devices and returns what to measure."""
    budget_s: float
    """Total time in seconds from start to the printed line."""
    python: str | None
    as_json: bool
    after: Callable[[RunDirectory, ExitCode], ExitCode]
    """Function that is called with the run and its exit code to write the requested files."""


def judge_by_options(
    options: dict[str, Any],
    *,
    recipes: Mapping[str, str],
    words: Callable[..., list[str]],
    seconds: Callable[[str, str], float],
    resume: Path | None,
    dry_run: bool,
    junit: Path | None,
    junit_strict: bool,
    bundle: Path | None,
    write_rules: Path | None,
) -> ExitCode:
    """Check this node as the `gpuproof validate` options specify: `recipes`, `words` and `seconds`.

    Raises:
        UsageError: an option does not apply to a gate, or there is too little time.
    """
    from gpuproof.cli.standards.judging import written

    hosts, python = options.pop("hosts"), options.pop("python")
    beside = {"--resume": resume, "--soak": options["soak"], "--dry-run": dry_run, "--on": hosts.are_named}
    refuse_with_prolog([name for name, value in beside.items() if value])
    budget, options["time_budget"] = options["time_budget"], None
    name = "prolog" if options["recipe"] == "standard" else options["recipe"]

    def plan(count: int) -> Planned:
        return recipes.get(name, name), [*words(hosts=hosts, count=lambda _: count), *options["overrides"]]

    gate = Gate(
        plan=plan,
        budget_s=BUDGET_S if budget is None else seconds("--time-budget", budget),
        python=python,
        as_json=options["as_json"],
        after=partial(
            written, junit=junit, junit_strict=junit_strict, bundle=bundle, write_rules=write_rules
        ),
    )
    return judge_node(gate)


def refuse_with_prolog(names: Sequence[str]) -> None:
    """Reject options that do not apply to a gate.

    Raises:
        UsageError: such an option was given.
    """
    if names:
        raise UsageError("a gate judges this node right away", place="--prolog", next_step=f"Omit {names[0]}")


def judge_node(gate: Gate) -> ExitCode:
    """Check this node within its time limit.

    Raises:
        UsageError: the time is too short to evaluate anything.
    """
    until_s = monotonic() + gate.budget_s - MARGIN_S
    if gate.budget_s < LEAST_S:
        raise UsageError(f"judging a node takes at least {LEAST_S:g} s", place="--time-budget")
    _forget_launchers()
    # The run is discarded unless run.save_dir names another folder.
    with scratch_folder("gate-") as folder, _ending(gate.budget_s, folder):
        try:
            code, line = _judged(gate, until_s, folder)
        except MissingGpusError as error:
            code, line = error.exit_code, str(error)
        except (GpuproofError, click.ClickException) as error:
            code = ExitCode.USAGE if isinstance(error, click.ClickException) else error.exit_code
            # 3 is reserved for measured results that are wrong.
            code = ExitCode.INCONCLUSIVE if code is ExitCode.FAILED else code
            line = f"could not judge: {error}"
        except Exception:  # noqa: BLE001  # a fault of ours must not look like one of the node's
            traceback.print_exc()
            code, line = ExitCode.OUR_BUG, "could not judge: a bug in gpuproof, see standard error"
    _say(line, to_error=gate.as_json)
    return code


def _judged(gate: Gate, until_s: float, folder: Path) -> tuple[ExitCode, str]:
    recipe, words = gate.plan(_free_devices(gate.python, limit_s=max(PROBE_S, gate.budget_s / 3)))
    from gpuproof.base.redaction import typed_command
    from gpuproof.campaign.campaign import create_run, run_campaign
    from gpuproof.campaign.scheduler import UnheardProgress
    from gpuproof.cli.measuring import plan_run
    from gpuproof.cli.report import show_report
    from gpuproof.launchers.registry import HostChoice, open_launcher
    from gpuproof.suites.validate.gate import gate_code, gate_line

    left = f"--validate.time_budget_s={max(1.0, until_s - monotonic()):.1f}"
    words = [f"--run.save_dir={folder}", left, *words]
    loaded, site = plan_run(recipe, words, hosts=HostChoice(), python=gate.python)
    with open_launcher(site) as launcher:
        places = launcher.places()
        typed = {"command": typed_command()}
        run = create_run(
            loaded.config, origins=loaded.origins, source=loaded.source, places=places, described=typed
        )
        concluded = run_campaign(run, launcher=launcher, progress=UnheardProgress(), until_s=until_s)
    if gate.as_json:
        show_report(concluded, as_json=True)
    return gate.after(run, gate_code(concluded.result)), gate_line(concluded.result)


def _free_devices(python: str | None, *, limit_s: float) -> int:
    """Return how many devices this process may use, by querying only their drivers.

    Raises:
        EnvironmentUnfitError: a device is in use, and the gate and its users must not disturb each other; or
            there is no device, and a driver does not respond.
    """
    from gpuproof.launchers.probe import probe

    users = probe(python, words=["--users"], timeout_s=limit_s)["users"]
    seen = [user for user in users if user["framework_index"] is not None and not user["is_silent"]]
    silent = [str(user["physical_index"]) for user in users if user["is_silent"]]
    if silent and not seen:
        raise silent_driver([f"device {place}" for place in silent])
    for user in seen:
        if user["processes"]:
            raise EnvironmentUnfitError(
                f"[user_problem] {user['processes']} processes use {user['name']} {user['uuid'] or ''}",
                next_step="Judge the node while it is idle",
            )
    return len(seen)


def _forget_launchers() -> None:
    """Remove environment variables that mark this process as one of several; keep allocated devices."""
    from gpuproof.launchers.surroundings import without_launchers
    from gpuproof.processes.granted import grant_for_later

    os.environ.update(grant_for_later(os.environ))
    remaining = without_launchers(os.environ)
    for name in os.environ.keys() - remaining.keys():
        del os.environ[name]


@contextmanager
def _ending(budget_s: float, folder: Path) -> Iterator[None]:
    """Exit this process when its time is up, whatever it is waiting for; its ranks then exit as well."""

    def end() -> None:
        _say(NEVER_ENDS)
        sys.stdout.flush()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(ExitCode.TIMEOUT)

    timer = Timer(budget_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(line: str, *, to_error: bool = False) -> None:
    from gpuproof.suites.validate.nodes import one_line

    click.echo(one_line(f"gpuproof: {line}"), err=to_error)
