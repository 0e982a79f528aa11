"""What follows a suspicion: searches among hosts and inside them, and a test without those accused.

Nothing is kept of it but what launches gave: which searches there are, and how far they are, follows from the
launches of the collective stage and from the figures of the tests so far, in whichever order these ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuproof.config.models import RunConfig
from gpuproof.suites.base import HostPlace
from gpuproof.suites.points.plan import config_at
from gpuproof.suites.validate.placing import StageCase
from gpuproof.suites.validate.stages import recipe_of
from gpuproof.suites.validate.suspicion import Blaming, SlowCollective, blame_devices, blame_hosts

PREFIX = "blame-"
"""Of all tests of groups."""
TEST_S = 30.0
"""Expected of one test of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedUp:
    """A suspicion, and the searches that it led to."""

    suspicion: SlowCollective
    search: Blaming
    inside: Mapping[str, Blaming]
    """Among the devices of each accused host, by its name."""

    @property
    def searches(self) -> tuple[Blaming, ...]:
        """All searches of the suspicion."""
        return (self.search, *self.inside.values())

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to test."""
        return all(search.is_over for search in self.searches)


def follow(suspicion: SlowCollective, config: RunConfig, figures: Mapping[str, float | None]) -> FollowedUp:
    """Return the searches of a suspicion, as far as the figures of tests bring them."""
    case, test = suspicion.case, _recipe(suspicion, config)
    noise, slowdown = suspicion.noise, suspicion.slowdown
    if not case.is_over_all:
        name = f"{PREFIX}{case.case_id}"
        search = blame_devices(
            test, case.places[0], _devices(case), noise=noise, slowdown=slowdown, name=name
        )
        return FollowedUp(suspicion=suspicion, search=search.with_figures(figures), inside={})
    by_name = {place.name: replace(place, num_devices=case.ranks_per_host) for place in case.places}
    places = [by_name[host] for host in suspicion.hosts]
    name = f"{PREFIX}{case.case_id}"
    search = blame_hosts(test, places, noise=noise, slowdown=slowdown, name=name).with_figures(figures)
    accused = _accused_members(search) if search.is_over and case.ranks_per_host > 1 else ()
    inside = {
        host: blame_devices(
            test, by_name[host], _devices(case), noise=noise, slowdown=slowdown, name=f"{name}-in@{host}"
        ).with_figures(figures)
        for host in accused
    }
    return FollowedUp(suspicion=suspicion, search=search, inside=inside)


def _recipe(suspicion: SlowCollective, config: RunConfig) -> RunConfig:
    """Return the recipe of a test: the operation and the size that were slow or wrong, where one is known."""
    recipe = recipe_of(suspicion.case, config)
    if suspicion.reason.operation is None:
        return recipe
    size = suspicion.reason.size_bytes
    one = {"operations": [suspicion.reason.operation], "min_bytes": size, "max_bytes": size}
    return config_at(recipe, {f"collective.{key}": value for key, value in one.items()})


def _devices(case: StageCase) -> Sequence[int]:
    return tuple(range(case.ranks_per_host)) if case.devices is None else case.devices


def _accused_members(search: Blaming) -> tuple[str, ...]:
    return tuple(member for group in search.search.findings().accused for member in group.members)


def without_accused(followed: Sequence[FollowedUp]) -> Iterator[StageCase]:
    """Yield the collectives once more, without the hosts or devices that were accused."""
    for search in followed:
        case, accused = search.suspicion.case, _accused_members(search.search)
        if not accused or not search.is_over:
            continue
        if case.is_over_all:
            left: tuple[HostPlace, ...] = tuple(place for place in case.places if place.name not in accused)
            if len(left) > 1:
                yield replace(case, name=f"{case.name}-without", places=left)
            continue
        devices = tuple(index for index in _devices(case) if str(index) not in accused)
        if len(devices) > 1:
            ranks = len(devices)
            yield replace(case, name=f"{case.name}-without", devices=devices, ranks_per_host=ranks)
