"""What a run would do, in lines for people: what is measured, where, and in how many launches.

In: the launches that a suite plans, of which a search knows only the first. Out: lines. Memory and time are
foreseen by `suites/forecast.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from gpuproof.base import units
from gpuproof.config.axes import matrix_axes
from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case, CollectiveWork, CommandWork, ModelWork, ServingWork
from gpuproof.records.work.command import value_text
from gpuproof.suites.base import Remaining, Suite
from gpuproof.suites.forecast import launches_text, number_range

MOST_WORKS = 2
DEVICES = {"auto": "a GPU if there is one, else the processor", "cpu": "the processor"}
FROM_HERE = {"estimate": "about", "limit": "at most"}


def planned_lines(
    config: RunConfig, suite: Suite, cases: Sequence[Case], remaining: Remaining
) -> Iterator[str]:
    """Yield what is measured, at which points, and in how many launches; `cases` come first."""
    yield f"measures: {suite.summary}"
    axes = [
        f"{key} = {', '.join(map(value_text, values))}" for key, values in matrix_axes(config.matrix).items()
    ]
    names = dict.fromkeys(case.case_id.partition("@")[0] for case in cases)
    if stages := _stages(config, suite):
        yield f"stages: {', '.join(stages)}"
    else:
        yield f"work: {units.first_of(dict.fromkeys(_works(config, cases)), MOST_WORKS, between='; ')}"
    if axes:
        yield f"points: {'; '.join(axes)}"
    elif len(names) > 1:
        yield f"cases: {units.first_of(names)}"
    side_by_side = f", {config.cases.parallel} at a time" if config.cases.parallel > 1 else ""
    yield f"plan: {launches_text(remaining)}{side_by_side}"


def time_line(remaining: Remaining) -> str:
    """Return how long all takes as far as its suite knows it by now."""
    if remaining.seconds is None or remaining.basis == "plan":
        return "time: not known before a launch has ended"
    return f"time: {FROM_HERE[remaining.basis]} {units.duration(remaining.seconds)}"


def ranks_text(config: RunConfig, suite: Suite, cases: Sequence[Case]) -> str:
    """Return how many ranks a launch has, and on what; nothing where commands run, or where stages differ."""
    if config.kind == "command" or _stages(config, suite):
        return ""
    places = [case.placement for case in cases]
    ranks = number_range([place.ranks_per_host for place in places])
    hosts = number_range([place.num_hosts for place in places])
    on_hosts = "" if hosts == "1" else f" on each of {hosts} hosts"
    devices = dict.fromkeys(DEVICES.get(place.device, place.device) for place in places)
    indices = dict.fromkeys(", ".join(map(str, place.devices)) for place in places if place.devices)
    which = f" (numbers {'; '.join(indices)})" if indices else ""
    some = "1 rank" if ranks == "1" else f"{ranks} ranks"
    each = "on" if some == "1 rank" else "each on"
    return f"; a launch has {some}{on_hosts}, {each} {' or '.join(devices)}{which}"


def _stages(config: RunConfig, suite: Suite) -> Sequence[str]:
    """Return the stages of a suite that has such: what comes later is other work than what comes first."""
    stages: Sequence[str] = config.suite_options.get(suite.name, {}).get("stages", ())
    return stages


def _works(config: RunConfig, cases: Sequence[Case]) -> Iterable[str]:
    if config.kind == "command":
        return [shlex.join(map(value_text, config.command.argv))]
    return map(_work, cases)


def _work(case: Case) -> str:
    work = case.work
    if isinstance(work, CommandWork):
        return shlex.join(work.command.argv)
    if isinstance(work, CollectiveWork):
        sizes = (work.collective.min_bytes, work.collective.max_bytes)
        return f"{', '.join(work.collective.operations)} of {' to '.join(map(units.memory, sizes))}"
    if isinstance(work, ServingWork) and work.serving.target != "model":
        return f"requests to {work.serving.endpoint.url or work.serving.target}"
    if isinstance(work, ModelWork):
        what = f"{work.model.name} {work.kind} on {work.data.name}, {work.training.precision}"
        return what if isinstance(work, ServingWork) else f"{what}, batch {work.data.batch_size}"
    return f"probe {work.probe.name}"
