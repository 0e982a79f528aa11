"""JSON of a run's files: the fast writer's bytes are those of the standard library, which older runs have."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuproof.readings.parsing import indented

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_it_is_what_the_standard_library_writes(value: Any) -> None:
    assert indented(value) == json.dumps(value, indent=2)


@pytest.mark.parametrize(
    "value",
    [1e-5, 0.00001234, 9.9e-5, 1e-4, 1e15, 1e16, 2**64, "1e-5", "0.0000", "a\x7f", "\u2028", {}, []],
)
def test_so_are_those_on_which_the_libraries_differ(value: Any) -> None:
    for held in (value, [value], {"key": value}):
        assert indented(held) == json.dumps(held, indent=2)


def test_numbers_of_numpy_are_written_as_numbers() -> None:
    assert indented({"mean": np.float64(0.25)}) == '{\n  "mean": 0.25\n}'
