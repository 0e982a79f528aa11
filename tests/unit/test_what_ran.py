"""What ran against what was asked: shares of FLOPs by hand, and the doubts that follow from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuproof.launches.launch import Launch
from gpuproof.records.result import Doubt
from gpuproof.records.what_ran import Compilation, GraphBreak, ObservedWork, Tf32Switch, share_of_flops
from gpuproof.suites.recipe.conclude import options_in_effect
from gpuproof.verdict.doubts.base import Measured
from gpuproof.verdict.doubts.plausibility import in_type, other_than_configured
from records_by_hand import CHANNELS_LAST, H200, STEP_OPTIONS, Story, case, effective, setup


def product(dtype: str, flops: float) -> ObservedWork:
    return ObservedWork(operation="matrix product", dtype=dtype, layout=None, flops=flops, calls=1)


def convolution(layout: Any, flops: float, dtype: str = "bfloat16") -> ObservedWork:
    return ObservedWork(operation="convolution", dtype=dtype, layout=layout, flops=flops, calls=1)


def compilation(**changes: Any) -> Compilation:
    base: dict[str, Any] = {
        "rank": 0,
        "mode": "default",
        "num_graphs": 2,
        "graph_breaks": (),
        "eager_frames": 0,
        "cuda_graph_skips": 0,
        "compiled_in_window": 0,
    }
    return Compilation(**{**base, **changes})


def launch(
    *records: Any,
    precision: str = "bf16",
    tf32: Tf32Switch | None = "off",
    channels_last: bool = False,
    **built: Any,
) -> Launch:
    options = replace(STEP_OPTIONS, tf32=tf32)
    story = Story(
        setups=[setup(device=H200, precision=precision, options=options, **built)],
        case=case(precision=precision, model={"channels_last": channels_last}),
        extra=records,
    )
    return story.launch()


def doubts(found: Launch) -> tuple[Doubt, ...]:
    return tuple(other_than_configured(Measured(launch=found)))


def codes(*records: Any, **asked: Any) -> list[tuple[str, str]]:
    return [(f.validity, f.code) for f in doubts(launch(*records, **asked))]


def test_shares_are_of_flops_and_not_of_calls() -> None:
    seen = effective(product("bfloat16", 60), product("float32", 20), convolution("NHWC", 20))
    assert share_of_flops(seen, in_type("bfloat16")) == 0.8
    assert share_of_flops(seen, lambda work: work.layout == "NHWC", images=True) == 1.0
    assert share_of_flops(effective(), in_type("bfloat16")) == 0.0


def test_both_operands_count() -> None:
    assert in_type("float8")(product("float8_e5m2 × float8_e4m3fn", 1))
    assert not in_type("float8")(product("float8_e5m2 × bfloat16", 1))


@pytest.mark.parametrize(
    ("precision", "work", "expected"),
    [
        ("bf16", {"bfloat16": 96, "float32": 4}, []),
        ("bf16", {"bfloat16": 94, "float32": 6}, [("SUSPECT", "other-precision")]),
        ("bf16", {"bfloat16": 49, "float32": 51}, [("INVALID", "other-precision")]),
        ("amp", {"bfloat16": 100}, [("INVALID", "other-precision")]),
        ("amp", {"float16": 100}, []),
        ("fp32", {"float32": 100}, []),
        ("fp32", {"bfloat16": 10, "float32": 90}, [("SUSPECT", "other-precision")]),
        # What is no linear layer is bf16 by design, but fp8 must be most of it.
        ("fp8", {"float8_e4m3fn": 30, "float8_e5m2 × float8_e4m3fn": 50, "bfloat16": 20}, []),
        ("fp8", {"float8_e4m3fn": 40, "bfloat16": 60}, [("INVALID", "other-precision")]),
        ("fp8", {"float8_e4m3fn": 80, "bfloat16": 10, "float32": 10}, [("SUSPECT", "other-precision")]),
    ],
)
def test_arithmetic_that_was_not_asked_for(
    precision: str, work: dict[str, float], expected: list[tuple[str, str]]
) -> None:
    seen = effective(*(product(dtype, flops) for dtype, flops in work.items()))
    assert codes(seen, precision=precision) == expected


def test_the_reason_names_what_ran() -> None:
    seen = effective(product("float32", 75), product("bfloat16", 25))
    (doubt,) = doubts(launch(seen))
    assert doubt.reason == (
        "training.precision is bf16, but 75 % of the FLOPs of rank 0 ran in something else: "
        "75 % float32, 25 % bfloat16"
    )


@pytest.mark.parametrize(
    ("nhwc", "either", "nchw", "expected"),
    [(90, 5, 5, []), (90, 4, 6, [("SUSPECT", "other-layout")]), (40, 9, 51, [("INVALID", "other-layout")])],
)
def test_a_layout_that_was_not_asked_for(
    nhwc: float, either: float, nchw: float, expected: list[tuple[str, str]]
) -> None:
    layouts = {"NHWC": nhwc, "either": either, "NCHW": nchw}
    seen = effective(*(convolution(layout, flops) for layout, flops in layouts.items()))
    assert codes(seen, channels_last=True) == expected
    assert codes(seen, channels_last=False) == []


def test_a_layout_that_was_not_applied_or_has_no_images_is_no_contradiction() -> None:
    assert codes(effective(convolution("NCHW", 1)), channels_last=True, not_applied=(CHANNELS_LAST,)) == []
    assert codes(effective(product("bfloat16", 1)), channels_last=True) == []


@pytest.mark.parametrize(
    ("precision", "tf32", "expected"),
    [
        ("fp32", "off", []),
        ("tf32", "on", []),
        ("fp32", None, []),
        ("bf16", "on", []),
        ("fp32", "on", [("INVALID", "other-tf32")]),
        ("fp32", "mixed", [("INVALID", "other-tf32")]),
        ("tf32", "off", [("INVALID", "other-tf32")]),
        ("tf32", "mixed", [("INVALID", "other-tf32")]),
    ],
)
def test_the_tf32_switch_is_read_back(
    precision: str, tf32: Tf32Switch | None, expected: list[tuple[str, str]]
) -> None:
    assert codes(precision=precision, tf32=tf32) == expected


def test_what_was_not_seen_contradicts_nothing() -> None:
    assert codes(effective(missing="torch.compile hides it")) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"num_graphs": 0}, [("INVALID", "nothing-compiled")]),
        ({"compiled_in_window": 1}, [("SUSPECT", "compiled-in-window")]),
    ],
)
def test_a_compiler_that_did_nothing_or_worked_in_the_window(
    changes: dict[str, int], expected: list[tuple[str, str]]
) -> None:
    assert codes(compilation(**changes)) == expected


def test_the_report_says_what_ran_in_one_line() -> None:
    seen = effective(product("bfloat16", 2), convolution("NHWC", 985), convolution("NCHW", 13, "float32"))
    ran = options_in_effect(launch(seen))
    assert ran is not None
    assert (
        ran.summary
        == "bf16, eager, no captured CUDA graph, SGD (foreach), no checkpointing, not deterministic"
    )
    assert ran.observed == (
        "convolution, matrix product: bfloat16 98.7 %, float32 1.30 % of the FLOPs; NHWC 98.7 %, NCHW 1.30 %"
    )


def test_the_report_says_what_the_compiler_did() -> None:
    broken = (GraphBreak(reason="a print", times=2),)
    hidden = effective(missing="torch.compile hides it")
    ran = options_in_effect(
        launch(hidden, compilation(graph_breaks=broken, eager_frames=1), precision="fp32")
    )
    assert ran is not None
    assert ran.summary.startswith(
        "fp32 (TF32 off), torch.compile default (2 graphs, 2 breaks, 1 functions uncompiled), "
    )
    assert ran.observed == "unknown: torch.compile hides it"
    assert ran.notes == ("torch.compile broke the graph 2 times: a print",)


def test_a_run_of_an_older_version_says_nothing_of_it() -> None:
    story = Story(setups=[setup()])
    assert options_in_effect(story.launch()) is None
    assert doubts(story.launch()) == ()
