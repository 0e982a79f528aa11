"""How many tests does it take to find slow hosts, and how often is a host wrongly accused?

Simulates fleets with slow hosts or links, and searches them (`gpuproof.verdict.blame`). A group's result is
that of its slowest member or link, multiplied by a level for its size, a drift and noise. Prints the number
of tests (median, 95 %, maximum), rounds, and the fraction of searches in which exactly the slow members were
identified, some were missed, a healthy one was accused (with its 95 % upper bound), something was left
undecided, and the slow link was listed as not tested. Asserts nothing. Promise: for one of 232 hosts 10 %
slow at 1 % noise, a median of at most 18 tests, and 24 in 95 % of searches; 20 if all are healthy; 40 for two
slow hosts; wrong accusations in at most 0.5 %. Usage: python benchmarks/blame_tests.py [--quick] [DRAWS
[WORLD]]; 1,000 take about five minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gpuproof.verdict.blame.evidence import Group
from gpuproof.verdict.blame.findings import Findings, links_not_tried
from gpuproof.verdict.blame.search import begin
from healthy_fleets import upper_bound

DRAWS = 1000
QUICK_DRAWS = 20
LIMIT = 5000
"""Number of tests after which a search gives up."""
LOG_SIGMA = 0.8
"""Standard deviation of the logarithm of times, if noise has a log-normal tail."""


@dataclass(frozen=True, kw_only=True)
class World:
    """A fleet and the behaviour of its tests."""

    name: str
    hosts: int = 232
    slow_hosts: int = 0
    in_a_row: bool = False
    """Whether the slow hosts are adjacent, as if behind one switch."""
    slow_links: int = 0
    slow_switch: int = 0
    """Number of hosts behind a switch that is slow to all other hosts, but not among themselves."""
    slower_by: float = 0.1
    noise: float = 0.01
    tails: str = "normal"
    drift: float = 0.0
    """Fraction by which all results fall from one round to the next."""
    common: float = 0.0
    """Standard deviation of the shift shared by all results of a round, an AR(1) process with φ = 0.9."""
    wandering: float = 0.0
    """Standard deviation of each host's own level, an AR(1) process with φ = 0.9 over rounds."""
    stalls: float = 0.0
    """Fraction of any host's tests that are slowed down by 5 to 50 % for another reason."""
    failing: float = 0.0
    """Fraction of tests that return no result."""
    present: float = 1.0
    """Fraction of tests in which a slow host or link is actually slow."""
    stays: float = 0.0
    """Probability that this state persists from the previous round; if 0, it is drawn per test."""
    rounded: float = 0.0
    dead: int = 0
    """Number of hosts for which no test returns a result."""
    every_link: bool = True
    told_noise: float | None = None
    """Noise that the search assumes; None: the true noise."""
    sought: float = 0.1
    """The slowdown to search for."""

    @property
    def healthy(self) -> bool:
        """Whether there is nothing to find."""
        return not (self.slow_hosts or self.slow_links or self.slow_switch or self.dead)


@dataclass(kw_only=True)
class Drawn:
    """One fleet drawn from a world."""

    world: World
    rng: np.random.Generator
    members: list[str]
    hosts: frozenset[str]
    links: frozenset[frozenset[str]]
    dead: frozenset[str]
    switch: frozenset[str]
    common: float = 0.0
    level: float = field(default=100.0)
    wander: dict[str, float] = field(default_factory=dict)
    """Relative deviation of each host in this round."""
    is_present: bool | None = None
    """Whether a slow member is slow in this round; None if this is drawn per test."""

    def begin_round(self, number: int) -> None:
        """Draw the level, the members' drift and whether a slow member is slow in this round."""
        world = self.world
        self.common = 0.9 * self.common + (1 - 0.9**2) ** 0.5 * world.common * self.rng.standard_normal()
        self.level = 100.0 * (1 - world.drift) ** number * (1 + self.common)
        if world.stays and (self.is_present is None or self.rng.random() >= world.stays):
            self.is_present = bool(self.rng.random() < world.present)
        if world.wandering:
            new = world.wandering * self.rng.standard_normal(len(self.members))
            for member, drawn in zip(self.members, new.tolist(), strict=True):
                before = self.wander.get(member)
                self.wander[member] = drawn if before is None else 0.9 * before + (1 - 0.9**2) ** 0.5 * drawn

    def test(self, group: Group) -> float | None:
        """Return a group's result."""
        world = self.world
        if self.rng.random() < world.failing or not self.dead.isdisjoint(group.members):
            return None
        is_present = self.rng.random() < world.present if self.is_present is None else self.is_present
        is_slow = self._is_slow(group) and is_present
        healthy = self.level * (1 + 0.3 / len(group.members))
        healthy *= 1 + min((self.wander.get(member, 0.0) for member in group.members), default=0.0)
        value = healthy * (1 - world.slower_by * is_slow) * (1 + world.noise * self._noise())
        if self.rng.random() < world.stalls:
            value *= 1 - self.rng.uniform(0.05, 0.5)
        if world.rounded:
            value = round(value / world.rounded) * world.rounded
        return max(0.0, float(value))

    def _noise(self) -> float:
        """Draw a deviation of variance 1; with a tail, it extends further below than above."""
        match self.world.tails:
            case "t4":
                return float(self.rng.standard_t(4) / 2**0.5)
            case "log-normal":
                times = np.exp(LOG_SIGMA * self.rng.standard_normal())
                mean, ratio = np.exp(LOG_SIGMA**2 / 2), np.exp(LOG_SIGMA**2)
                return float((mean - times) / (mean * (ratio - 1) ** 0.5))
        return float(self.rng.standard_normal())

    def _is_slow(self, group: Group) -> bool:
        if not self.hosts.isdisjoint(group.members):
            return True
        behind = self.switch.intersection(group.members)
        if behind and len(behind) < len(group.members):
            return True
        return any(link.issubset(group.members) for link in self.links)


def draw(world: World, rng: np.random.Generator) -> Drawn:
    """Draw which members are slow."""
    members = [f"n{number}" for number in range(world.hosts)]
    order = [members[i] for i in rng.permutation(world.hosts)]
    if world.in_a_row:
        first = int(rng.integers(world.hosts - world.slow_hosts + 1))
        order = members[first:] + order
    links = [frozenset(order[2 * i : 2 * i + 2]) for i in range(world.slow_links)]
    first = int(rng.integers(max(1, world.hosts - world.slow_switch)))
    return Drawn(
        world=world,
        rng=rng,
        members=members,
        hosts=frozenset(order[: world.slow_hosts]),
        links=frozenset(links),
        dead=frozenset(order[: world.dead]),
        switch=frozenset(members[first : first + world.slow_switch]),
    )


def search(drawn: Drawn) -> Findings:
    """Run the search on a fleet until it ends."""
    world = drawn.world
    noise = world.noise if world.told_noise is None else world.told_noise
    state = begin(
        drawn.members, noise=noise, slowdown=world.sought, every_link=world.every_link, most_tests=LIMIT
    )
    while groups := state.next_round():
        drawn.begin_round(state.num_rounds)
        state = state.settle({group: drawn.test(group) for group in groups})
    return state.findings()


@dataclass(frozen=True, kw_only=True)
class Tally:
    """The results of the searches of one world."""

    tests: list[int]
    rounds: list[int]
    exact: int
    missed: int
    wrong: int
    undecided: int
    not_tried: int


def tally(world: World, draws: int, seed: int) -> Tally:
    """Search many fleets in a world."""
    rng = np.random.default_rng(seed)
    tests, rounds, exact, missed, wrong, undecided, not_tried = [], [], 0, 0, 0, 0, 0
    for _ in range(draws):
        drawn = draw(world, rng)
        found = search(drawn)
        named = {frozenset(each.members) for each in (*found.accused, *found.links)}
        guilty = {frozenset((host,)) for host in (*drawn.hosts, *drawn.dead)} | set(drawn.links)
        guilty |= _behind(drawn, named)
        tests.append(found.num_tests)
        rounds.append(found.num_rounds)
        exact += named == guilty
        missing = guilty - named
        untried = missing & _not_tried(drawn, found)
        missed += bool(missing - untried)
        not_tried += bool(untried)
        wrong += bool(named - guilty)
        undecided += bool(found.undecided)
    return Tally(
        tests=tests,
        rounds=rounds,
        exact=exact,
        missed=missed,
        wrong=wrong,
        undecided=undecided,
        not_tried=not_tried,
    )


def _behind(drawn: Drawn, named: set[frozenset[str]]) -> set[frozenset[str]]:
    """Return the correct answers for a slow switch: any host behind it, or any link out of it."""
    return {each for each in named if len(each & drawn.switch) == 1}


def _not_tried(drawn: Drawn, found: Findings) -> set[frozenset[str]]:
    """Return the slow links that the findings list as not tested."""
    if not drawn.links:
        return set()
    pairs = links_not_tried(drawn.members, found.tests, every_link=drawn.world.every_link)
    return set(drawn.links) & {frozenset(pair) for pair in pairs}


def worlds() -> Iterator[World]:
    """Yield the worlds covered by the promise, then other shapes."""
    yield World(name="all healthy")
    yield World(name="one slow", slow_hosts=1)
    yield World(name="two slow", slow_hosts=2)
    yield World(name="one slow, ring", slow_hosts=1, every_link=False)
    for tails in ("t4", "log-normal"):
        yield World(name=f"all healthy, {tails}", tails=tails)
        yield World(name=f"one slow, {tails}", slow_hosts=1, tails=tails)
        yield World(name=f"two slow, {tails}", slow_hosts=2, tails=tails)
    for healthy in (0, 1):
        yield World(name=f"{healthy} slow, drift 1 % a round", slow_hosts=healthy, drift=0.01)
        yield World(name=f"{healthy} slow, rounds alike ±2 %", slow_hosts=healthy, common=0.02)
        yield World(name=f"{healthy} slow, hosts wander ±1 %", slow_hosts=healthy, wandering=0.01)
        yield World(name=f"{healthy} slow, 2 % of tests stall", slow_hosts=healthy, stalls=0.02)
        yield World(name=f"{healthy} slow, 5 % of tests fail", slow_hosts=healthy, failing=0.05)
        yield World(name=f"{healthy} slow, rounded to 2 %", slow_hosts=healthy, rounded=2.0)
        yield World(name=f"{healthy} slow, noise 3 %", slow_hosts=healthy, noise=0.03)
        yield World(name=f"{healthy} slow, noise 4 %", slow_hosts=healthy, noise=0.04)
        yield World(name=f"{healthy} slow, noise 4 %, t4", slow_hosts=healthy, noise=0.04, tails="t4")
        yield World(name=f"{healthy} slow, noise 10 %", slow_hosts=healthy, noise=0.1)
        yield World(
            name=f"{healthy} slow, noise 2 %, told 1 %", slow_hosts=healthy, noise=0.02, told_noise=0.01
        )
    yield World(name="one 5 % slow", slow_hosts=1, slower_by=0.05)
    yield World(name="one 5 % slow, sought", slow_hosts=1, slower_by=0.05, sought=0.05)
    yield World(name="healthy, 5 % sought", sought=0.05)
    yield World(name="one 30 % slow", slow_hosts=1, slower_by=0.3)
    yield World(name="one slow in a quarter of tests", slow_hosts=1, present=0.25)
    yield World(name="one slow in half of tests", slow_hosts=1, present=0.5)
    yield World(name="one slow in half, in spells", slow_hosts=1, present=0.5, stays=0.8)
    yield World(name="two slow in half of tests", slow_hosts=2, present=0.5)
    yield World(name="one slow in three quarters", slow_hosts=1, present=0.75)
    yield World(name="one slow in nine of ten", slow_hosts=1, present=0.9)
    yield World(name="one with which all tests fail", dead=1)
    yield World(name="16 in a row slow", slow_hosts=16, in_a_row=True)
    yield World(name="8 slow anywhere", slow_hosts=8)
    yield World(name="40 slow anywhere", slow_hosts=40)
    yield World(name="16 behind a slow switch", slow_switch=16)
    yield World(name="a slow link", slow_links=1)
    yield World(name="a slow link of 16 hosts", hosts=16, slow_links=1)
    yield World(name="a slow link of 16 hosts, ring", hosts=16, slow_links=1, every_link=False)
    for hosts in (3, 5, 8, 16):
        yield World(name=f"{hosts} hosts, one slow in half", hosts=hosts, slow_hosts=1, present=0.5)
        yield World(name=f"{hosts} hosts, 2 % of tests stall", hosts=hosts, stalls=0.02)
    for hosts in (2, 3, 5, 8, 16, 64):
        yield World(name=f"{hosts} hosts, healthy", hosts=hosts)
        yield World(name=f"{hosts} hosts, one slow", hosts=hosts, slow_hosts=1)
        yield World(name=f"{hosts} hosts, one slow, t4", hosts=hosts, slow_hosts=1, tails="t4")
        if hosts > 2:
            yield World(name=f"{hosts} hosts, two slow", hosts=hosts, slow_hosts=2)
            yield World(name=f"{hosts} hosts, a slow link", hosts=hosts, slow_links=1)
    yield World(name="4,096 hosts, healthy", hosts=4096)
    yield World(name="4,096 hosts, one slow", hosts=4096, slow_hosts=1)
    yield World(name="4,096 hosts, 5 slow", hosts=4096, slow_hosts=5)


HEADER = f"{'':34} tests: median  95 %  most  rounds   exact  missed   wrong (under)  undecided  not tested"


def told(world: World, found: Tally, draws: int) -> str:
    """Return a line of the table."""
    quantile = np.quantile(found.tests, 0.95, method="higher")
    shares = f"{found.exact / draws:7.1%} {found.missed / draws:7.1%} {found.wrong / draws:7.2%}"
    return (
        f"{world.name:34} {np.median(found.tests):13.0f} {quantile:5.0f} {max(found.tests):5.0f} "
        f"{np.median(found.rounds):7.0f} {shares} ({upper_bound(found.wrong, draws):.2%}) "
        f"{found.undecided / draws:9.1%} {found.not_tried / draws:9.1%}"
    )


def main() -> None:
    """Simulate and print."""
    words = [word for word in sys.argv[1:] if word != "--quick"]
    draws = int(words[0]) if words else QUICK_DRAWS if "--quick" in sys.argv else DRAWS
    only = words[1] if len(words) > 1 else ""
    print(HEADER)
    for seed, world in enumerate(worlds()):
        count = max(20, draws // 20) if world.hosts > 1000 else draws
        if only in world.name:
            print(told(world, tally(world, count, seed), count), flush=True)


if __name__ == "__main__":
    main()
