"""The table of nccl-tests, as it is documented, and what is not in order with it."""

from __future__ import annotations

import pytest

from gpuproof.records.work.probe import NcclTestsSpec
from gpuproof.worker.probes.nccl_tests import command_of, read_table, values_of

HEAD = """# nThread 1 nGpus 2 minBytes 8 maxBytes 1024 step: 4(factor) warmup iters: 5 iters: 20
#
#                                                              out-of-place                       in-place
#     size       count    type   redop   root    time   algbw   busbw #wrong    time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
ROWS = """  8           2   float     sum     -1   12.34    0.00    0.00      0   12.20    0.00    0.00      0
   1048576      262144   float     sum     -1   25.00   41.94   41.94      0   24.00   43.69   43.69      0
"""
FOOT = """# Out of bounds values : 0 OK
# Avg bus bandwidth    : 21.4075
#
"""
SPEC = NcclTestsSpec(
    program="all_reduce_perf",
    min_bytes=8,
    max_bytes=1024,
    factor=4,
    iterations=20,
    warmup_iterations=5,
    time_limit_s=60.0,
)


@pytest.mark.promise("S3.17")
def test_a_whole_table_is_read() -> None:
    table = read_table(HEAD + ROWS + FOOT)
    assert table.is_complete
    assert table.not_understood == ()
    assert [row.size_bytes for row in table.rows] == [8, 1048576]
    large = table.rows[1].out_of_place
    assert large is not None
    assert (large.time_s, large.bus_bytes_per_s, large.num_wrong) == pytest.approx((25e-6, 41.94e9, 0))


def test_wrong_values_are_figures_of_their_own() -> None:
    rows = ROWS.replace("41.94      0", "41.94      3")
    wrong = {
        (figure.labels["size_bytes"], figure.labels["place"]): figure.value
        for figure in values_of(read_table(HEAD + rows + FOOT), SPEC, rank=0)
        if figure.quantity == "wrong values"
    }
    assert wrong == {(8, "out_of_place"): 0, (8, "in_place"): 0, (1048576, "out_of_place"): 3} | {
        (1048576, "in_place"): 0
    }


def test_a_bandwidth_below_the_last_digit_is_missing_and_no_zero() -> None:
    small = [
        f for f in values_of(read_table(HEAD + ROWS + FOOT), SPEC, rank=0) if f.labels["size_bytes"] == 8
    ]
    (first,) = (f for f in small if f.quantity == "bus bandwidth" and f.labels["place"] == "in_place")
    assert first.value is None
    assert first.missing is not None


def test_not_applicable_columns_and_checks_that_were_not_made() -> None:
    row = "1048576 262144 float none -1 25.00 41.94 20.97 N/A 24.00 N/A N/A N/A\n"
    (read,) = read_table(HEAD + row + FOOT).rows
    assert read.in_place is None
    assert read.out_of_place is not None
    assert read.out_of_place.num_wrong is None
    unchecked = [f for f in values_of(read_table(row + FOOT), SPEC, rank=0) if f.quantity == "wrong values"]
    assert [(figure.value, figure.missing) for figure in unchecked] == [(None, "the program did not check")]


def test_an_older_form_of_wrong_is_read() -> None:
    row = "1048576 262144 float sum -1 25.00 41.94 20.97 2e+00 24.00 43.69 21.8 0e+00\n"
    (read,) = read_table(row + FOOT).rows
    assert read.out_of_place is not None
    assert read.out_of_place.num_wrong == 2


@pytest.mark.parametrize("text", [HEAD + ROWS, HEAD + ROWS[: len(ROWS) // 2]])
def test_a_table_that_was_cut_off_says_so_in_every_figure(text: str) -> None:
    table = read_table(text)
    assert not table.is_complete
    figures = list(values_of(table, SPEC, rank=0))
    assert figures
    assert all(any("cut off" in line for line in figure.evidence) for figure in figures)


@pytest.mark.parametrize(
    "line", ["node1: Test NCCL failure common.cu:1005", "8 2 float sum -1 1 2 3 x 1 2 3 0"]
)
def test_what_is_no_row_is_told_and_not_guessed(line: str) -> None:
    table = read_table(f"{HEAD}{line}\n")
    assert table.rows == ()
    assert table.not_understood == (line,)


def test_the_command_line() -> None:
    command = command_of("/opt/all_reduce_perf", SPEC, num_devices=8)
    assert " ".join(command) == "/opt/all_reduce_perf -b 8 -e 1024 -f 4 -n 20 -w 5 -g 8"
