"""Does recording slow a step down? Budget: the 95 % upper bound of the ratio is 1.01.

Each launch is a fresh process that runs a hand-written training loop, leaving one CPU free, with and without
the sampler of `gpuproof run` (five readings a second of eight fake devices and the host), in palindromic
order. The sampler runs as it does during a case: in a separate process, free to use any CPU.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from cases import small_case
from gpuproof.monitor.watch import SamplerOptions, start_sampler
from pairing import Block, judge_ratios, launch_ratios, machine_line, palindromes
from timed_commands import python, timed

SIDES = ("alone", "watched", "alone again")
BATCH = 512
"""Batch size whose step takes about 10 ms on one core of the development machines."""
INTERVAL_S = 0.2
BUDGET = 1.01


def main() -> None:
    """Print the ratio of step times with and without the sampler."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 short launches")
    parser.add_argument("--launch", type=int, metavar="BLOCKS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.launch:
        print(json.dumps(launch(num_blocks=options.launch, segment_s=0.5 if options.launch > 2 else 0.2)))
        return
    num_launches, num_blocks = (2, 2) if options.quick else (8, 8)
    print(machine_line())
    command = python(__file__, "--launch", str(num_blocks))
    launches: list[list[Block]] = [json.loads(timed(command).output) for _ in range(num_launches)]
    judgement = judge_ratios(
        "ratio of a step with the sampler running to a step without",
        launch_ratios(launches, "watched", base="alone"),
        noise_values=launch_ratios(launches, "alone again", base="alone"),
        budget=BUDGET,
    )
    print("\n".join(judgement.lines()))


def launch(*, num_blocks: int, segment_s: float) -> list[Block]:
    """Run all sides in this process; return the seconds per step for each segment, block by block."""
    from step_sides import segments_of

    usable = sorted(os.sched_getaffinity(0))
    with TemporaryDirectory() as name, fake_devices():
        folder = Path(name)
        os.sched_setaffinity(0, usable[1:] or usable)
        segment = segments_of(small_case("medium", f"--data.batch_size={BATCH}"), folder)["bare"]
        step_s = segment(20) / 20
        num_steps = max(5, round(segment_s / step_s))
        blocks: list[Block] = []
        for order in palindromes(SIDES, num_blocks=num_blocks):
            block = []
            for place, side in enumerate(order):
                with beside(side == "watched", folder / f"{len(blocks)}-{place}.jsonl", free=usable):
                    block.append((side, segment(num_steps) / num_steps))
            blocks.append(block)
        return blocks


@contextmanager
def beside(watched: bool, out: Path, *, free: list[int]) -> Iterator[None]:
    """Keep a sampler running during the block, ready before it starts."""
    if not watched:
        yield
        return
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, free)  # a child inherits its parent's CPU affinity
    session = start_sampler(out, options=SamplerOptions(interval_s=INTERVAL_S))
    os.sched_setaffinity(0, own)
    session.wait_ready()
    try:
        yield
    finally:
        session.stop(exit_code=None)


@contextmanager
def fake_devices() -> Iterator[None]:
    """Give the sampler eight devices, as on a full node."""
    os.environ["GPUPROOF_FAKE_DEVICES"] = "8"
    try:
        yield
    finally:
        del os.environ["GPUPROOF_FAKE_DEVICES"]


if __name__ == "__main__":
    main()
