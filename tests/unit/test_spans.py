"""Stretches of time: by hand, and against a count of unit cells."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuproof.base.spans import Span, covered, merged, without

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12)


def cells(spans: list[Span]) -> set[int]:
    return {cell for begin, end in spans for cell in range(int(begin), int(end))}


def test_spans_that_touch_or_overlap_are_one() -> None:
    assert merged([(5, 7), (0, 2), (2, 3), (6, 9), (4, 4)]) == [(0, 3), (5, 9)]
    assert covered([(5, 7), (0, 2), (2, 3), (6, 9), (4, 4)]) == 7


def test_holes_cut_spans_at_either_end_inside_and_whole() -> None:
    spans, holes = [(0.0, 4.0), (5.0, 9.0), (10.0, 12.0)], [(-1.0, 1.0), (3.0, 6.0), (7.0, 8.0), (9.5, 20.0)]
    assert without(spans, holes) == [(1, 3), (6, 7), (8, 9)]
    assert without([], holes) == []
    assert without(spans, []) == spans


@given(SPANS, SPANS)
def test_any_spans_agree_with_a_count_of_cells(a: list[Span], b: list[Span]) -> None:
    assert cells(merged(a)) == cells(a)
    assert covered(a) == len(cells(a))
    left = without(merged(a), merged(b))
    assert cells(left) == cells(a) - cells(b)
    assert left == merged(left)
