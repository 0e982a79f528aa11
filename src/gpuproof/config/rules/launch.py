"""Do the ranks that a config declares agree with how this process was launched?

`distributed.world_size`, `local_rank` and `node_rank` are facts about a launch, not wishes: under torchrun
(or RANK and WORLD_SIZE set by hand) they must equal the environment's, otherwise the ranks started here.
The sizes of groups must fit the same ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuproof.config.rules.parallel import find_misfits
from gpuproof.config.rules.refusal import Contradiction
from gpuproof.config.sections.distributed import DistributedConfig

_VARIABLES = {
    "world_size": ("WORLD_SIZE",),
    "local_rank": ("LOCAL_RANK",),
    "node_rank": ("GROUP_RANK", "NODE_RANK"),
}


def find_disagreements(declared: DistributedConfig, *, environment: Mapping[str, str]) -> list[Contradiction]:
    """Name each declared fact that the launch contradicts; a fact of which it says nothing is believed."""
    launched = "RANK" in environment and "WORLD_SIZE" in environment
    there = _from_launcher(environment) if launched else _from_this_command(declared)
    found = []
    for name, (value, witness) in there.items():
        declared_value = getattr(declared, name)
        if declared_value is not None and str(declared_value) != value:
            found.append(
                Contradiction(
                    keys=(f"distributed.{name}", "distributed.nproc"),
                    cause=f"{name} is declared as {declared_value}, but {witness}",
                    next_step="Set it to null, or launch as it says",
                )
            )
    return [*found, *find_misfits(declared, world_size=there["world_size"][0])]


def _from_launcher(environment: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    return {
        name: (environment[variable].strip(), f"the environment says {variable}={environment[variable]}")
        for name, variables in _VARIABLES.items()
        for variable in variables[::-1]
        if variable in environment
    }


def _from_this_command(declared: DistributedConfig) -> dict[str, tuple[str, str]]:
    nproc, nodes = declared.nproc, declared.nodes
    local = ("0", "the one rank here is 0") if nproc == 1 else ("", f"the {nproc} ranks here have one each")
    return {
        "world_size": (str(nproc * nodes), f"distributed.nproc starts {nproc}{_on(nodes)}"),
        "local_rank": local,
        "node_rank": ("0", "this host is the only one") if nodes == 1 else ("", f"there are {nodes} hosts"),
    }


def _on(nodes: int) -> str:
    return f" on each of {nodes} hosts" if nodes > 1 else ""
