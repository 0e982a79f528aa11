"""The checks of the environment by name, as rules ask for them (`check: NAME`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gpuproof.records.outcome import Outcome
from gpuproof.verdict.checks import alike, clocks, devices, events, fallbacks, options, packets
from gpuproof.verdict.facts import FleetFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentCheck:
    """A question about the environment."""

    name: str
    summary: str
    """What a PASS says."""
    judge: Callable[[FleetFacts], Sequence[Outcome]]


def _check(name: str, summary: str, judge: Callable[[FleetFacts], Sequence[Outcome]]) -> EnvironmentCheck:
    return EnvironmentCheck(name=name, summary=summary, judge=judge)


_CHECKS = (
    *(
        _check(f"same {what}", f"all hosts have the same {what}", partial(alike.judge_hosts_alike, what))
        for what in alike.OF_HOSTS
    ),
    *(
        _check(
            f"same {what}", f"all GPUs of a type have the same {what}", partial(alike.judge_gpus_alike, what)
        )
        for what in alike.OF_GPUS
    ),
    _check("clocks", "the clocks of all hosts agree", clocks.judge_clocks_alike),
    _check("ecc", "memory errors are corrected on every GPU", devices.judge_ecc),
    _check("memory health", "no GPU has memory that failed, or waits for a reset", devices.judge_memory),
    _check("mig", "no GPU is divided", devices.judge_mig),
    _check("persistence", "drivers stay loaded between runs", devices.judge_persistence),
    _check("pcie", "every GPU has all lanes of its slot", devices.judge_pcie),
    _check("clock policy", "no clock or power cap under what the board has", devices.judge_clocks),
    _check("nvlink", "GPUs of a type have as many links up", devices.judge_nvlink),
    _check("xid", "no driver announced an error of a GPU", events.judge_events),
    _check("infiniband", "every port is active", fallbacks.judge_ports),
    _check("network", "hosts communicate over InfiniBand where they have it", fallbacks.judge_network),
    _check("gpudirect", "network cards read GPU memory directly", fallbacks.judge_gpudirect),
    _check("lost packets", "links between hosts lose hardly a packet", packets.judge_packets),
    _check("peer to peer", "GPUs of a host copy directly to each other", fallbacks.judge_peer_to_peer),
    _check("numa", "processes may use the processors beside their GPUs", fallbacks.judge_numa),
    _check("all ranks", "every GPU took part, together with the others", fallbacks.judge_ranks),
    _check("backend", "GPUs communicate over a GPU backend", fallbacks.judge_backend),
    _check("options have an effect", "the chosen options made a difference", options.judge_options),
)
CHECKS: Mapping[str, EnvironmentCheck] = {check.name: check for check in _CHECKS}
