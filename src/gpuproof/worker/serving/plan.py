"""From what a case asks to what the generator issues: MLPerf LoadGen's scenarios, and a closed loop.

single_stream: one request at a time, of one sample. multi_stream: one at a time, of several. server: by a
schedule. offline: everything at once. closed_loop: a number of users who each wait for their answer.
Source: MLPerf Inference rules, section Scenarios, https://github.com/mlcommons/inference_policies
"""

from __future__ import annotations

import math

from gpuproof.records.serving_spec import ServingSpec
from gpuproof.worker.serving.generator import TrafficPlan

ONE_AT_A_TIME = ("single_stream", "multi_stream")
CLOSED_LOOP_STRETCH = 10.0
"""A closed loop that has too few requests after its window goes on for at most this many windows."""


def traffic_plan(spec: ServingSpec, *, begin_monotonic_s: float, seed: int) -> TrafficPlan:
    """Return the plan of a case's window."""
    if spec.scenario == "offline":
        return TrafficPlan(begin_monotonic_s=begin_monotonic_s, seed=seed, num_requests=spec.min_requests)
    if spec.scenario == "server":
        assert spec.rate_per_s is not None
        return TrafficPlan(
            begin_monotonic_s=begin_monotonic_s,
            seed=seed,
            arrivals=spec.arrivals,
            rate_per_s=spec.rate_per_s,
            num_requests=max(spec.min_requests, math.ceil(spec.rate_per_s * spec.window_s)),
        )
    return TrafficPlan(
        begin_monotonic_s=begin_monotonic_s,
        seed=seed,
        concurrency=1 if spec.scenario in ONE_AT_A_TIME else spec.concurrency,
        min_requests=spec.min_requests,
        min_s=spec.window_s,
        max_s=spec.window_s * CLOSED_LOOP_STRETCH,
    )
