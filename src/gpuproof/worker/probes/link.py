"""How fast do bytes come to each device, from it, and from one device to another? And do they arrive whole?

One rank goes through all devices of its host. Copies are timed by events of the device that sends or, of the
host's links, by those of the device itself. What was copied is compared on the host at the end: a device that
receives wrong bytes and is asked whether they are right is no witness.
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
from gpuproof.records.work.probe import HostMemory, LinkSpec
from gpuproof.records.work.probe_figure import ProbeFigure
from gpuproof.worker.engine.clocks import clock_for
from gpuproof.worker.engine.repeats import time_repeats
from gpuproof.worker.rank.bench import Bench
from gpuproof.worker.rank.recorder import NANOSECOND_DIGITS
from gpuproof.worker.step.preparation import device_record

QUANTITY = "link bandwidth"
WORD_BYTES = 8
STRIDE = 0x9E3779B97F4A7C1
"""An odd number with about as many ones as zeros among its bits."""
Direction = Literal["one_way", "both_ways"]
LinkKind = Literal["h2d", "d2h", "d2d"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """What a link joins, and how long one copy over it is; None of a device is the host."""

    source: torch.device | None
    target: torch.device | None
    size_bytes: int
    host_memory: HostMemory | None = None

    @property
    def kind(self) -> LinkKind:
        """Which kind of link it is."""
        if self.source is None:
            return "h2d"
        return "d2h" if self.target is None else "d2d"

    @property
    def timed_on(self) -> torch.device:
        """The device whose events time the copy: the one that sends, or the only one."""
        device = self.source or self.target
        assert device is not None
        return device

    @property
    def labels(self) -> dict[str, object]:
        """What figures of it are labelled with."""
        memory = {} if self.host_memory is None else {"host_memory": self.host_memory}
        return {"kind": self.kind, "size_bytes": self.size_bytes, **memory}


def measure_links(spec: LinkSpec, bench: Bench) -> Iterator[ProbeFigure]:
    """Yield the times of all copies, and after each size how many words arrived wrong."""
    accelerator = accelerator_of(bench.device)
    if not accelerator.asynchronous:
        yield ProbeFigure(
            rank=bench.identity.rank,
            quantity=QUANTITY,
            unit="B/s",
            missing=f"the rank computes on the {accelerator.title}, which has no memory of its own",
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
    """Return those that the case names, else all that torch sees."""
    named = bench.case.placement.devices
    indices = range(accelerator.count()) if named is None else named
    return [torch.device(accelerator.type, index) for index in indices]


def _words(size_bytes: int) -> torch.Tensor:
    """Return words that all differ from their neighbours, so that a shifted copy shows."""
    return torch.arange(max(1, size_bytes // WORD_BYTES)) * STRIDE + 1


def _with_host(
    device: torch.device, size_bytes: int, memory: HostMemory, spec: LinkSpec, bench: Bench
) -> Iterator[ProbeFigure]:
    accelerator, queued = accelerator_of(device), memory == "pinned"
    if queued and not accelerator.pins_memory:
        return
    sent = _words(size_bytes)
    back = torch.zeros_like(sent)
    if queued:
        sent, back = sent.pin_memory(), back.pin_memory()
    there = torch.zeros_like(sent, device=device)
    held = sent.to(device)

    def to_device() -> None:
        there.copy_(sent, non_blocking=queued)

    def to_host() -> None:
        back.copy_(held, non_blocking=queued)

    forth = _Ends(source=None, target=device, size_bytes=sent.nbytes, host_memory=memory)
    home = replace(forth, source=device, target=None)
    yield _timed(forth, "one_way", to_device, spec, bench)
    yield _timed(home, "one_way", to_host, spec, bench)
    if spec.both_ways and queued:  # copies from pageable memory wait for each other on the host
        yield _timed(forth, "both_ways", lambda: accelerator.run_both(to_device, to_host), spec, bench)
    accelerator.synchronize(device)
    yield _wrong(forth, there.cpu(), sent, bench)
    yield _wrong(home, back, sent, bench)


def _between(
    source: torch.device, target: torch.device, size_bytes: int, spec: LinkSpec, bench: Bench
) -> Iterator[ProbeFigure]:
    accelerator, words = accelerator_of(source), _words(size_bytes)
    here, coming = words.to(source), torch.zeros_like(words, device=source)
    there, going = torch.zeros_like(words, device=target), words.to(target)

    def forth() -> None:
        there.copy_(here, non_blocking=True)

    def back() -> None:
        coming.copy_(going, non_blocking=True)

    ends = _Ends(source=source, target=target, size_bytes=words.nbytes)
    yield _timed(ends, "one_way", forth, spec, bench)
    if spec.both_ways and source.index < target.index:
        yield _timed(ends, "both_ways", lambda: accelerator.run_both(forth, back, peer=target), spec, bench)
    accelerator.synchronize(source)
    accelerator.synchronize(target)
    yield _wrong(ends, there.cpu(), words, bench)


def _timed(
    ends: _Ends, direction: Direction, run: Callable[[], None], spec: LinkSpec, bench: Bench
) -> ProbeFigure:
    times_s = time_repeats(
        run,
        clock=clock_for(ends.timed_on, synchronised=ends.host_memory == "pageable"),
        iterations=spec.iterations,
        warmup_iterations=spec.warmup_iterations,
    )
    bench.count(times_s)
    return ProbeFigure(
        rank=bench.identity.rank,
        quantity=QUANTITY,
        unit="B/s",
        labels={**ends.labels, "direction": direction},
        amount=float(ends.size_bytes * (2 if direction == "both_ways" else 1)),
        durations_s=tuple(round(time_s, NANOSECOND_DIGITS) for time_s in times_s),
        source=_record(ends.source),
        target=_record(ends.target),
    )


def _wrong(ends: _Ends, got: torch.Tensor, sent: torch.Tensor, bench: Bench) -> ProbeFigure:
    """Count the words of the last copy that are not what was sent, on the host."""
    return ProbeFigure(
        rank=bench.identity.rank,
        quantity="wrong values",
        unit="1",
        labels={**ends.labels, "pattern": "copy"},
        value=float(int((got != sent).sum())),
        evidence=("words of the last copy, compared on the host",),
        source=_record(ends.source),
        target=_record(ends.target),
    )


def _record(device: torch.device | None) -> Device | None:
    return None if device is None else device_record(device)
