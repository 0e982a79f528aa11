"""Dynamic batching on a clock that the test moves: who is run with whom, and when each is done."""

from __future__ import annotations

import pytest

from gpuproof.worker.serving.batching import BatchingRule, ServedRequests, serve


class Arrivals:
    """Requests at given times of a simulated clock, which waiting moves."""

    def __init__(self, times_s: list[float]) -> None:
        self._times_s = times_s
        self._heard = 0
        self.now_s = 0.0
        self.exhausted = not times_s
        self.told_done = 0

    def new_requests(self, timeout_s: float | None) -> int:
        if self._heard < len(self._times_s):
            coming_s = self._times_s[self._heard]
            until_s = coming_s if timeout_s is None else min(coming_s, self.now_s + timeout_s)
            self.now_s = max(self.now_s, until_s)
        elif timeout_s:
            self.now_s += timeout_s
        here = sum(time_s <= self.now_s for time_s in self._times_s)
        found, self._heard = here - self._heard, here
        self.exhausted = here == len(self._times_s)
        return found

    def done(self, count: int) -> None:
        self.told_done += count


def served(
    times_s: list[float], *, batch_s: float, max_batch: int, max_wait_s: float = 0.0, samples: int = 1
) -> tuple[ServedRequests, Arrivals, list[int]]:
    arrivals, sizes = Arrivals(times_s), []

    def run(num_samples: int) -> None:
        sizes.append(num_samples)
        arrivals.now_s += batch_s

    rule = BatchingRule(samples_per_request=samples, max_batch=max_batch, max_wait_s=max_wait_s)
    return serve(arrivals, run, rule, begin_s=0.0, clock=lambda: arrivals.now_s), arrivals, sizes


def test_requests_one_by_one_wait_for_the_one_before() -> None:
    result, arrivals, sizes = served([1.0, 1.1, 5.0], batch_s=1.0, max_batch=1)
    assert list(result.begun_s) == pytest.approx([1.0, 2.0, 5.0])
    assert list(result.done_s) == pytest.approx([2.0, 3.0, 6.0])
    assert sizes == [1, 1, 1]
    assert arrivals.told_done == 3


def test_those_that_wait_are_run_together_up_to_the_limit() -> None:
    result, _, sizes = served([1.0, 1.2, 1.3, 1.4, 1.5, 9.0], batch_s=1.0, max_batch=3)
    assert sizes == [1, 3, 1, 1]
    assert list(result.done_s) == pytest.approx([2.0, 3.0, 3.0, 3.0, 4.0, 10.0])
    assert dict(result.batches) == {1: 3, 3: 1}


def test_an_unfilled_batch_is_held_for_others_no_longer_than_asked() -> None:
    result, _, sizes = served([1.0, 1.2, 1.6, 9.0], batch_s=1.0, max_batch=4, max_wait_s=0.5)
    assert sizes == [2, 1, 1]
    assert list(result.begun_s[:2]) == pytest.approx([1.5, 1.5])
    assert result.begun_s[2] == pytest.approx(3.0)  # taken in at 2.5, where its half second begins


def test_a_full_batch_is_not_held() -> None:
    result, _, sizes = served([1.0, 1.1, 1.2, 9.0], batch_s=1.0, max_batch=2, max_wait_s=60.0)
    assert sizes[0] == 2
    assert result.begun_s[0] == pytest.approx(1.1)


def test_requests_of_several_samples_fill_batches_sooner() -> None:
    _, _, sizes = served([1.0] * 5, batch_s=1.0, max_batch=16, samples=8)
    assert sizes == [16, 16, 8]


def test_first_tokens_are_noted_for_each_request_of_their_batch() -> None:
    arrivals = Arrivals([1.0, 1.2, 1.3])

    def answer(num_samples: int) -> float:
        arrivals.now_s += 0.25 * num_samples  # the prompts are read one after the other
        first_token_s = arrivals.now_s
        arrivals.now_s += 2.0
        return first_token_s

    rule = BatchingRule(samples_per_request=1, max_batch=8, max_wait_s=0.0)
    result = serve(arrivals, answer, rule, begin_s=1.0, clock=lambda: arrivals.now_s)
    # From the begin at 1.0: one alone until 2.25, meanwhile two come, are read until 2.75 and done at 4.75.
    assert list(result.begun_s) == pytest.approx([0.0, 2.25, 2.25])
    assert list(result.first_token_s) == pytest.approx([0.25, 2.75, 2.75])
    assert list(result.done_s) == pytest.approx([2.25, 4.75, 4.75])


def test_without_tokens_no_first_token_is_noted() -> None:
    result, _, _ = served([1.0], batch_s=1.0, max_batch=1)
    assert not result.first_token_s


def test_no_request_is_no_batch() -> None:
    result, _, sizes = served([], batch_s=1.0, max_batch=4)
    assert sizes == []
    assert not result.done_s
