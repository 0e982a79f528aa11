"""Which of several doubts is the likely cause of the others? They are told in that order, and in one line.

One disturbance shows in several ways: who takes the processors makes steps scatter and drift, and launches
differ. What names somebody or something comes first, what only describes a symptom later, and last what is a
matter of how much was asked for or of how figures may be quoted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuproof.records.result import Doubt

LIKELY: Mapping[str, str] = {
    "device-fault": "a fault of a device",
    "gpu-neighbours": "other processes on the GPU",
    "cpu-neighbours": "other processes on the processors",
    "cpu-steal": "other machines on this hypervisor",
    "compiled-in-window": "compiling inside the window",
    "unequal-ranks": "a rank that is slower than the others",
    "data-bound": "waiting for data",
    "made-before": "batches that were ready before the window",
    "host-bound": "a host that launches work too slowly for its device",
    "idle-unknown": "a device that may have waited for its host",
    "generator-late": "a load generator that is late",
    "requests-failed": "requests that failed",
    "queue-grows": "more requests than can be served",
    "ranks-wait": "ranks that wait for each other",
    "gap-between-steps": "time outside of all steps",
    "gpus-not-used": "GPUs that were not used",
    "ranks-differ": "ranks that take different times",
    "unsteady": "steps that change their level",
    "stalled": "stops inside steps",
    "periodic-steps": "steps that are longer at a regular pace",
    "slow-start": "first requests that are slower",
    "super-linear": "a speed-up of more than the devices can give",
    "growth-or-drift": "steps that become longer",
    "noisy": "steps that scatter",
    "launches-differ": "launches that differ",
    "steadiness-unknown": "steps that may have changed their level",
    "few-steps": "too few steps",
    "imprecise": "less precision than was asked for",
    "other-precision": "arithmetic other than was asked for",
    "other-layout": "a layout other than was asked for",
    "over-peak": "a rate over the data sheet's peak",
    "over-memory-peak": "a rate over the bandwidth of the memory",
    "over-measured-compute": "a rate over what plain products reached",
    "over-measured-memory": "a rate over what plain passes reached",
    "flops-disagree": "two counts of the work that differ",
    "work-not-counted": "work that was not counted",
    "not-measured": "operations that were not measured",
    "not-checked": "results that were not compared",
}
"""What a doubt says in a few words, the likeliest cause of the others first."""
LAST = len(LIKELY)


def likely_first(doubts: Sequence[Doubt]) -> list[Doubt]:
    """Order doubts by gravity, and those of one gravity by what is likely to explain the others."""
    places = {code: place for place, code in enumerate(LIKELY)}
    return sorted(doubts, key=lambda doubt: (doubt.validity != "INVALID", places.get(doubt.code, LAST)))


def in_one_line(doubts: Sequence[Doubt]) -> str:
    """Name what makes figures SUSPECT in one line, the likeliest cause first.

    >>> told = [Doubt(validity="SUSPECT", code=c, reason="", remedy="") for c in ("noisy", "cpu-neighbours")]
    >>> in_one_line(told)
    'most likely because of other processes on the processors; besides: steps that scatter'
    >>> in_one_line(told[:1])
    'because of steps that scatter'
    """
    codes = dict.fromkeys(doubt.code for doubt in likely_first(doubts))
    first, *besides = (LIKELY.get(code, code.replace("-", " ")) for code in codes)
    if not besides:
        return f"because of {first}"
    return f"most likely because of {first}; besides: {', '.join(besides)}"
