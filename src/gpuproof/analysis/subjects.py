"""Of whom is a figure? The subjects of a launch's ranks: `host/H`, `host/H/gpu/UUID`, `link/A>B`.

A host is called as the inventory does where the case names it, else as it calls itself. A device without a
permanent identity goes by its index; a processor is `cpu-N`, N being the rank's number on its host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpuproof.records.case import Case
from gpuproof.records.run import Device, Setup, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSubjects:
    """Where one rank is, as subjects."""

    host: str
    device: str


def device_subject(host: str, device: Device, *, local_rank: int) -> str:
    """Return a device as a subject; `host` is one, too."""
    if device.uuid is not None:
        return f"{host}/gpu/{device.uuid}"
    number = local_rank if device.index is None else device.index
    return f"{host}/gpu/{'cpu-' if device.kind == 'cpu' else ''}{number}"


def link_subject(source: str, target: str) -> str:
    """Return the way from one subject to another.

    >>> link_subject("host/a", "host/a/gpu/GPU-1")
    'link/host/a>host/a/gpu/GPU-1'
    """
    return f"link/{source}>{target}"


def subjects_of_ranks(
    case: Case, windows: Sequence[Window], setups: Sequence[Setup]
) -> tuple[RankSubjects, ...]:
    """Return the subjects of a launch's ranks, in their order; windows and setups are in it too."""
    named = case.placement.hosts
    subjects, ranks_on = [], Counter[str]()
    for window, setup in zip(windows, setups, strict=True):
        place = window.rank // case.placement.ranks_per_host
        name = named[place] if len(named) == case.placement.num_hosts > place else window.host
        host = f"host/{name}"
        subjects.append(
            RankSubjects(host=host, device=device_subject(host, setup.device, local_rank=ranks_on[host]))
        )
        ranks_on[host] += 1
    return tuple(subjects)
