"""Program of test_simulated_runs: decodes on a simulated device, prints what its events and itself say.

A long product goes before the steps, so that the device is behind its host in all of them whatever else this
machine does: nothing but a step that waits for the device can then make it idle.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import torch

from gpuproof.accelerators.choose import accelerator_of
from gpuproof.worker.engine.clocks import clock_for
from gpuproof.worker.engine.loop import run_chunk
from gpuproof.worker.rank.identity import RankIdentity
from gpuproof.worker.step.effective import observe
from gpuproof.worker.step.generation import DecodeStep
from gpuproof.worker.step.preparation import prepare
from records_by_hand import case

SIZES = {"d_model": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "d_ff": 128, "vocab_size": 512}
PROMPT, NEW, STEPS = 30, 70, 75


def main() -> None:
    """Time steps through both buckets, and back to the prompt."""
    asked = case(
        kind="inference",
        precision="bf16",
        model={"name": "decoder", "options": SIZES},
        data={"name": "synthetic", "batch_size": 4, "samples_per_epoch": 8},
        placement={"device": "simgpu"},
        training=None,
        inference={"phase": "decode", "prompt_tokens": PROMPT, "new_tokens": NEW},
    )
    identity = RankIdentity(rank=0, world_size=1, local_rank=0, local_world_size=1)
    prepared = prepare(asked, identity=identity, run_folder=Path())
    device, eager = prepared.device, prepared.step
    assert isinstance(eager, DecodeStep)
    eager()
    step = eager.capture(partial(observe, rank=0))
    assert step.is_graph
    accelerator, clock = accelerator_of(device), clock_for(device, synchronised=False)

    def busy_s() -> float:
        accelerator.synchronize(device)
        counted_s = accelerator.busy_s(device)
        assert counted_s is not None
        return counted_s

    matrix = torch.ones(1024, 1024, device=device)

    def multiply() -> None:
        matrix @ matrix

    before_s = busy_s()
    run_chunk(multiply, clock, 1)
    run_chunk(step, clock, STEPS)
    product_s, *times_s = clock.drain(in_flight=0)
    json.dump({"times_s": times_s, "busy_s": busy_s() - before_s - product_s}, sys.stdout)


if __name__ == "__main__":
    main()
