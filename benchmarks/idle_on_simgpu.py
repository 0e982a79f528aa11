"""If a device has to wait for its host, is its idle time measured, and do windows end on time?

A kernel takes 40 ms on the simulated device, and the host takes longer to launch it, so that the device is
idle for 5, 20, 50 and 80 % of the time. The reported value is compared with the device's own count over the
same window. Then it runs steps of one kernel, launched immediately, in windows of 1 and 10 s. Requires the
package `gpuproof-simgpu`.

    python benchmarks/idle_on_simgpu.py
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch

from gpuproof.accelerators.base import Accelerator
from gpuproof.accelerators.choose import choose_accelerator
from gpuproof.base.units import share
from gpuproof.readings.limits import HOST_BOUND
from gpuproof.statistics.estimate import Interval
from gpuproof.statistics.launches import interval_of_launches
from gpuproof.worker.engine.clocks import EventClock, clock_for
from gpuproof.worker.engine.loop import FixedSteps, TimeLimit, WindowTiming, run_window
from gpuproof.worker.rank.idleness import block_steps, busy_blocks, busy_during, may_wait

KERNEL_S = 0.04
KERNELS = 4
WINDOW_S = 8.0
PACED_STEP_S = KERNEL_S
LATE_S = 2 * PACED_STEP_S + 0.3
WITHIN = 0.05
Step = Callable[[], None]


def step_of(num_kernels: int, *, host_s: float, values: torch.Tensor) -> Step:
    """Return a step of kernels, each of which is launched `host_s` after the previous one."""

    def step() -> None:
        for _ in range(num_kernels):
            begin_s = time.perf_counter()
            values.mul_(1.0)
            time.sleep(max(0.0, begin_s + host_s - time.perf_counter()))

    return step


def window_of(step: Step, clock: EventClock, seconds: float, heard_s: list[float]) -> WindowTiming:
    """Run a window for some seconds, and record when steps were reported."""

    def hear(times_s: Sequence[float]) -> None:
        if times_s:
            heard_s.append(time.perf_counter())

    run_window(step, clock, FixedSteps(5), lambda _times: None)
    return run_window(step, clock, TimeLimit(seconds, agree=int), hear)


def try_idle(aimed: float, accelerator: Accelerator, device: torch.device, values: torch.Tensor) -> bool:
    """Print the reported value next to the truth; return whether both agree and the report is right."""
    clock = clock_for(device, synchronised=False)
    assert isinstance(clock, EventClock)
    step = step_of(KERNELS, host_s=KERNEL_S / (1 - aimed), values=values)
    run_window(step, clock, FixedSteps(3), lambda _times: None)
    accelerator.synchronize(device)
    caught_up, busy_s = clock.caught_up, accelerator.busy_s(device) or 0.0
    timing = run_window(step, clock, TimeLimit(WINDOW_S, agree=int), lambda _times: None)
    true = 1 - ((accelerator.busy_s(device) or 0.0) - busy_s) / timing.wall_s
    caught_up = clock.caught_up - caught_up
    print(f"aimed at {share(aimed)}: idle {share(true)}, ", end="")
    if not may_wait(caught_up, num_steps=timing.num_steps):
        print("not looked at")
        return true <= HOST_BOUND
    step_s = timing.wall_s / timing.num_steps
    during = partial(busy_during, accelerator=accelerator, device=device)
    blocks = busy_blocks(step, num_steps=block_steps(step_s), busy_during=during)
    found = interval_of_launches(list(blocks))
    assert isinstance(found, Interval)
    low, reported = 1 - found.high / step_s, 1 - found.centre / step_s
    said = "host-bound" if low > HOST_BOUND else "nothing"
    print(
        f"reported {share(reported)}, caught up with {caught_up} of {timing.num_steps} launches, said: {said}"
    )
    return abs(reported - true) <= WITHIN and (said == "host-bound") == (true > HOST_BOUND)


def try_pace(seconds: float, device: torch.device, values: torch.Tensor) -> bool:
    """Print how late a window of immediately launched steps ends; return whether that is soon enough."""
    clock = clock_for(device, synchronised=False)
    assert isinstance(clock, EventClock)
    heard_s: list[float] = []
    timing = window_of(step_of(1, host_s=0.0, values=values), clock, seconds, heard_s)
    silence_s = max(after - before for before, after in pairwise(heard_s))
    print(f"window of {seconds:g} s: {timing.wall_s:.2f} s, no report for at most {silence_s:.2f} s")
    return timing.wall_s <= seconds + LATE_S


def main() -> None:
    """Run all trials; exit with 1 if any fails."""
    declared = {"devices": 2, "launch_latency_s": KERNEL_S, "memory_bytes_per_s": 1e15}
    os.environ["GPUPROOF_SIMGPU"] = json.dumps(declared)
    accelerator, device = choose_accelerator("simgpu"), torch.device("simgpu", 0)
    accelerator.set_device(device)
    values = torch.ones(4, device=device)
    right = [try_idle(aimed, accelerator, device, values) for aimed in (0.05, 0.2, 0.5, 0.8)]
    right += [try_pace(seconds, device, values) for seconds in (1.0, 10.0)]
    raise SystemExit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
