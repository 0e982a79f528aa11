"""How fast are transfers to, from and between devices, and do the bytes arrive unchanged?

One rank iterates over all devices of its host. Copies are timed with events on the sending device or, for
links to the host, on the device itself. Every copy is compared outside the timed intervals on the device that
receives it. The last copies are also compared on the host, since a device that receives wrong bytes cannot be
trusted to check them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Literal

import torch

from gpuproof.accelerators.base import Accelerator
from gpuproof.accelerators.choose import accelerator_of
from gpuproof.records.run import Device
from gpuproof.records.work.probe import HostMemory, LinkSpec, ProbeReading
from gpuproof.worker.engine.clocks import clock_for, time_repeats
from gpuproof.worker.rank.bench import Bench
from gpuproof.worker.rank.recorder import rounded
from gpuproof.worker.step.preparation import device_record

QUANTITY = "link bandwidth"
WORD_BYTES = 8
STRIDE = 0x9E3779B97F4A7C1
"""An odd number with about as many one bits as zero bits."""
Direction = Literal["one_way", "both_ways"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """The two ends of a link, and the size of a copy; None in place of a device means the host."""

    source: torch.device | None
    target: torch.device | None
    size_bytes: int
    host_memory: HostMemory | None = None

    @property
    def timed_on(self) -> torch.device:
        """The device that times the copy with its events: the sending device, or the only one."""
        device = self.source or self.target
        assert device is not None
        return device

    @property
    def labels(self) -> dict[str, object]:
        """Labels for the results of this link."""
        memory = {} if self.host_memory is None else {"host_memory": self.host_memory}
        kind = "h2d" if self.source is None else "d2h" if self.target is None else "d2d"
        return {"kind": kind, "size_bytes": self.size_bytes, **memory}


class _Way:
    """One direction of a link: the second copy in each pair is timed, and all copies are compared.

    The first copy keeps the device busy while the second is queued; comparing would not take long enough for
    that. Words and their inverses alternate between two buffers, so that a copy that writes nothing is also
    detected.
    """

    def __init__(self, words: Sequence[torch.Tensor], ends: _Ends) -> None:
        self.ends = ends
        self._words = words
        self._sent = _at(ends.source, words)
        self._expected = _at(ends.target, words)
        self._got = [torch.zeros_like(side) for side in self._expected]
        if ends.host_memory == "pinned" and ends.target is None:
            self._got = [side.pin_memory() for side in self._got]
        self._pair = 0
        self._num_wrong: list[torch.Tensor] = []

    def first(self) -> None:
        """Compare the previous pair, then make the first copy of the next pair."""
        if self._pair:
            self._compare(self._got, self._expected)
        self._pair += 1
        self._copy(0)

    def second(self) -> None:
        """Perform the timed copy."""
        self._copy(1)

    def _copy(self, place: int) -> None:
        sent = self._sent[(self._pair + place) % 2]
        self._got[place].copy_(sent, non_blocking=self.ends.host_memory != "pageable")

    def _compare(self, got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
        if self.ends.target is None:
            accelerator_of(self.ends.timed_on).synchronize(self.ends.timed_on)
        for place, side in enumerate(got):
            num = (side != expected[(self._pair + place) % 2]).sum()
            # The count is copied to the timing device; otherwise a copy between devices would wait for the
            # other device while it is timed.
            is_here = num.device.type == "cpu"
            self._num_wrong.append(num if is_here else num.to(self.ends.timed_on, non_blocking=True))

    def num_wrong(self) -> list[int]:
        """Compare the last pair on the host; return how many words of each copy were wrong."""
        for device in filter(None, (self.ends.source, self.ends.target)):
            accelerator_of(device).synchronize(device)
        self._compare([side.cpu() for side in self._got], self._words)
        return [int(num) for num in self._num_wrong]


def measure_links(spec: LinkSpec, bench: Bench) -> Iterator[ProbeReading]:
    """Yield the times of all copies and, after each size, how many words were wrong on arrival."""
    accelerator = accelerator_of(bench.device)
    if not accelerator.asynchronous:
        yield ProbeReading(
            rank=bench.identity.rank,
            quantity=QUANTITY,
            unit="B/s",
            missing=f"the rank computes on the {accelerator.title}, which has no separate memory",
            is_inapplicable=True,
            is_of_host=True,
        )
        return
    devices = _devices(bench, accelerator)
    for device in devices:
        accelerator.set_device(device)
        for size_bytes in spec.sizes_bytes:
            for memory in spec.host_memory:
                yield from _with_host(device, size_bytes, memory, spec, bench)
    if spec.between_devices:
        for source, target in permutations(devices, 2):
            accelerator.set_device(source)
            for size_bytes in spec.sizes_bytes:
                yield from _between(source, target, size_bytes, spec, bench)
    accelerator.set_device(bench.device)


def _devices(bench: Bench, accelerator: Accelerator) -> Sequence[torch.device]:
    """Return the devices that the case lists, or else all that torch sees."""
    named = bench.case.placement.devices
    indices = range(accelerator.count()) if named is None else named
    return [torch.device(accelerator.type, index) for index in indices]


def _words(size_bytes: int, memory: HostMemory | None = None) -> list[torch.Tensor]:
    """Return words that differ from their neighbours (to reveal shifted copies), and their inverse."""
    words = torch.arange(max(1, size_bytes // WORD_BYTES)) * STRIDE + 1
    return [side.pin_memory() if memory == "pinned" else side for side in (words, ~words)]


def _at(device: torch.device | None, words: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    return words if device is None else [side.to(device) for side in words]


def _with_host(
    device: torch.device, size_bytes: int, memory: HostMemory, spec: LinkSpec, bench: Bench
) -> Iterator[ProbeReading]:
    accelerator = accelerator_of(device)
    if memory == "pinned" and not accelerator.pins_memory:
        return
    words = _words(size_bytes, memory)
    ends = _Ends(source=None, target=device, size_bytes=words[0].nbytes, host_memory=memory)
    forth, home = _Way(words, ends), _Way(words, replace(ends, source=device, target=None))
    yield _timed([forth], "one_way", forth.second, spec, bench)
    yield _timed([home], "one_way", home.second, spec, bench)
    if spec.both_ways and memory == "pinned":  # copies from pageable memory are serialised on the host

        def both() -> None:
            accelerator.run_both(forth.second, home.second)

        yield _timed([forth, home], "both_ways", both, spec, bench)
    yield from (_wrong(way, bench) for way in (forth, home))


def _between(
    source: torch.device, target: torch.device, size_bytes: int, spec: LinkSpec, bench: Bench
) -> Iterator[ProbeReading]:
    accelerator, words = accelerator_of(source), _words(size_bytes)
    ends = _Ends(source=source, target=target, size_bytes=words[0].nbytes)
    forth = _Way(words, ends)
    yield _timed([forth], "one_way", forth.second, spec, bench)
    if spec.both_ways and source.index < target.index:
        back = _Way(words, replace(ends, source=target, target=source))

        def both() -> None:
            accelerator.run_both(forth.second, back.second, peer=target)

        yield _timed([forth, back], "both_ways", both, spec, bench)
        yield _wrong(back, bench, direction="both_ways")
    yield _wrong(forth, bench)


def _timed(
    ways: Sequence[_Way], direction: Direction, run: Callable[[], None], spec: LinkSpec, bench: Bench
) -> ProbeReading:
    ends = ways[0].ends

    def first() -> None:
        for way in ways:
            way.first()

    times_s = time_repeats(
        run,
        clock=clock_for(ends.timed_on, synchronised=ends.host_memory == "pageable"),
        iterations=spec.iterations,
        warmup_iterations=spec.warmup_iterations,
        before=first,
    )
    bench.count(times_s)
    return ProbeReading(
        rank=bench.identity.rank,
        quantity=QUANTITY,
        unit="B/s",
        labels={**ends.labels, "direction": direction},
        amount=float(ends.size_bytes * len(ways)),
        durations_s=rounded(times_s),
        source=_record(ends.source),
        target=_record(ends.target),
    )


def _wrong(way: _Way, bench: Bench, **labels: Direction) -> ProbeReading:
    """Report how many words across all copies differed from what was sent, and in how many copies."""
    num_wrong = way.num_wrong()
    bad = [place for place, num in enumerate(num_wrong, start=1) if num]
    first = f": {len(bad)} wrong, the first was number {bad[0]}" if bad else ""
    return ProbeReading(
        rank=bench.identity.rank,
        quantity="wrong values",
        unit="1",
        labels={**way.ends.labels, "pattern": "copy", **labels},
        value=float(sum(num_wrong)),
        evidence=(f"{len(num_wrong)} copies compared, the last two on the host{first}",),
        source=_record(way.ends.source),
        target=_record(way.ends.target),
    )


def _record(device: torch.device | None) -> Device | None:
    return None if device is None else device_record(device)
