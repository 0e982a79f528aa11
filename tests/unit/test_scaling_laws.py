"""Scaling laws by hand and by simulation: what is fitted, what is refused, what is predicted, what breaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.suites.scale.curves import Fabric, breaks_of, overhead
from gpuproof.suites.scale.laws import (
    AMDAHL,
    USL,
    CurvePoint,
    LawFit,
    LawName,
    LawTrial,
    Prediction,
    fit_law,
    predict,
    reason_not_tried,
)

LADDER = (1, 2, 4, 8)
SIGMA, KAPPA = 0.03, 0.002


def amdahl(number: int) -> float:
    return 1 + SIGMA * (number - 1)


def usl(number: int) -> float:
    return amdahl(number) + KAPPA * number * (number - 1)


def slower_link(number: int) -> float:
    return amdahl(number) + (0.25 if number > 4 else 0.0)


def points(
    slowdown: Callable[[int], float],
    ladder: Sequence[int] = LADDER,
    *,
    scatter: Sequence[float] = (0.999, 1.0, 1.001),
) -> list[CurvePoint]:
    return [
        CurvePoint(num_devices=n, rates=tuple(1000 * n / slowdown(n) / factor for factor in scatter))
        for n in ladder
    ]


def fitted(found: LawFit | Unavailable) -> LawFit:
    assert isinstance(found, LawFit), found
    return found


def refused(found: LawFit | Prediction | Unavailable) -> str:
    assert isinstance(found, Unavailable), found
    return found.reason


def test_points_on_a_law_give_its_parameters_back() -> None:
    # N / X is 1/1000 (1 + 0.03 (N - 1)) seconds to every digit, but for a scatter of 0.1 %
    assert fitted(fit_law(points(amdahl), AMDAHL)).serial.centre == pytest.approx(SIGMA, rel=1e-6)
    found = fitted(fit_law(points(usl), USL))
    assert found.crosstalk is not None
    assert (found.serial.centre, found.crosstalk.centre) == pytest.approx((SIGMA, KAPPA), rel=1e-6)
    assert found.serial.low < SIGMA < found.serial.high


@pytest.mark.parametrize(
    ("given", "law", "says"),
    [
        (
            points(amdahl, (1, 2)),
            AMDAHL,
            "needs 3 different numbers of devices (one more than the law has parameters)",
        ),
        (points(usl, (1, 2, 4)), USL, "needs 4 different numbers of devices"),
        (points(amdahl, (2, 4, 8)), AMDAHL, "one device was not measured"),
        (points(amdahl, scatter=(1.0, 1.001)), AMDAHL, "1 devices have 2 launches (needs 3)"),
        (
            points(lambda n: 0.9 if n > 1 else 1.0),
            AMDAHL,
            "2 devices were faster than perfect scaling from one device",
        ),
        (points(lambda n: 1 - 0.001 * (n - 1)), AMDAHL, "σ is at its bound of 0"),
        (points(lambda n: 1 + 0.1 * (n - 1) - 0.001 * n * (n - 1)), USL, "κ is at its bound of 0"),
        (points(slower_link), AMDAHL, "the points do not follow it"),
    ],
)
def test_what_is_no_fit_says_why(given: list[CurvePoint], law: LawName, says: str) -> None:
    assert says in refused(fit_law(given, law))


def test_a_prediction_names_its_law_and_was_tried_on_the_largest() -> None:
    found = predict(points(amdahl))
    assert isinstance(found, Prediction)
    assert (found.law, found.trial.num_devices, found.trial.passed) == (AMDAHL, 8, True)
    assert found.trial.measured == pytest.approx(1 / 1.21)
    assert [point.num_devices for point in found.points] == [16, 32, 64]
    # by hand: 1 / (1 + 0.03 · 15), 1 / (1 + 0.03 · 31), 1 / (1 + 0.03 · 63)
    assert [point.efficiency.centre for point in found.points] == pytest.approx(
        [1 / 1.45, 1 / 1.93, 1 / 2.89]
    )
    assert all(p.efficiency.low < p.efficiency.centre < p.efficiency.high for p in found.points)
    with_pairs = predict(points(usl))
    assert isinstance(with_pairs, Prediction)
    assert with_pairs.law == USL


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (points(amdahl, (1, 2, 4)), "needs 4 different numbers of devices"),
        (points(slower_link, scatter=(0.99, 1.0, 1.01)), "no law fits: the points do not follow any of them"),
        (points(amdahl, scatter=(0.85, 1.0, 1.15)), "it could not fail"),
        (
            points(
                lambda n: amdahl(n) * (1.05 if n == 8 else 1), (1, 2, 3, 4, 6, 8), scatter=(0.99, 1, 1.01)
            ),
            "failed on 8 devices: from the others it predicts an efficiency of 82.6% (79.1% to 86.5%), "
            "but 78.7%",
        ),
    ],
)
def test_what_cannot_be_predicted_says_why(given: list[CurvePoint], says: str) -> None:
    assert says in refused(predict(given))


@pytest.mark.parametrize(
    ("truth", "most_missed"), [(amdahl, 0.05), (usl, 0.08), (lambda n: amdahl(n) + 1e-4 * n * (n - 1), 0.05)]
)
def test_intervals_of_predictions_hold_the_truth(truth: Callable[[int], float], most_missed: float) -> None:
    """A subset of `benchmarks/scaling_fits.py`; heavy tails, ten launches."""
    rng = np.random.default_rng(12)
    made = missed = sigma_missed = fits = 0
    for _ in range(200):
        tails = np.where(rng.random((len(LADDER), 10)) < 0.2, 3.0, 1.0)
        scatter = np.exp(rng.normal(0, 0.005, tails.shape) * tails)
        study = [
            CurvePoint(num_devices=n, rates=tuple(1000 * n / truth(n) * scatter[place]))
            for place, n in enumerate(LADDER)
        ]
        law = USL if truth is usl else AMDAHL
        fit = fit_law(study, law)
        if truth in (usl, amdahl) and isinstance(fit, LawFit):
            fits += 1
            sigma_missed += not fit.serial.low <= SIGMA <= fit.serial.high
        found = predict(study)
        if isinstance(found, Prediction):
            made += 1
            missed += any(
                not p.efficiency.low <= 1 / truth(p.num_devices) <= p.efficiency.high for p in found.points
            )
    assert made >= 100
    assert missed / made <= most_missed + 2 * (0.05 * 0.95 / made) ** 0.5
    assert sigma_missed <= (0.07 + 2 * (0.05 * 0.95 / max(1, fits)) ** 0.5) * fits


@pytest.mark.parametrize(
    ("truth", "least_made"),
    [
        (lambda _: 1.0, 0.85),
        (lambda n: 1 + 0.06 * (n - 1) / n, 0.85),  # a ring whose sum takes 3 % of a step each way
        (lambda n: 1 + 0.05 * np.log2(n), 0.0),
    ],
)
@pytest.mark.parametrize("spread", [0.005, 0.02])
def test_linear_machines_and_rings_are_predicted_and_what_follows_no_law_is_not_missed(
    truth: Callable[[int], float], least_made: float, spread: float
) -> None:
    rng = np.random.default_rng(5)
    made = missed = 0
    for _ in range(60):
        found = predict(
            [
                CurvePoint(
                    num_devices=n, rates=tuple(1000 * n / truth(n) * np.exp(rng.normal(0, spread, 10)))
                )
                for n in LADDER
            ]
        )
        if isinstance(found, Prediction):
            made += 1
            missed += any(
                not p.efficiency.low <= 1 / truth(p.num_devices) <= p.efficiency.high for p in found.points
            )
    assert made >= 60 * least_made
    assert missed <= 5  # of 60: 5 % would be 3


def test_nothing_is_predicted_across_a_slower_link_that_the_largest_number_shows() -> None:
    rng = np.random.default_rng(3)
    for _ in range(100):
        study = [
            CurvePoint(num_devices=n, rates=tuple(1000 * n / slower_link(n) * np.exp(rng.normal(0, 0.01, 5))))
            for n in LADDER
        ]
        assert isinstance(predict(study), Unavailable)


def test_a_curve_breaks_where_ranks_talk_in_another_way() -> None:
    def fabric(hosts: int = 1, backend: str | None = "nccl", *algorithms: str) -> Fabric:
        return Fabric(num_hosts=hosts, backend=backend, algorithms=algorithms)

    alone = (1, fabric(1, None))
    assert not list(breaks_of([alone, (2, fabric()), (4, fabric()), (8, fabric())]))
    hosts = list(breaks_of([alone, (2, fabric()), (8, fabric()), (16, fabric(2))]))
    assert [(b.before, b.after, b.reason) for b in hosts] == [(8, 16, "from 1 host to 2")]
    rings = list(breaks_of([alone, (2, fabric(1, "nccl", "RING")), (4, fabric(1, "nccl", "TREE"))]))
    assert [(b.before, b.after, b.reason) for b in rings] == [(2, 4, "from RING to TREE")]
    assert not list(breaks_of([(2, fabric(1, "nccl", "RING")), (4, fabric())])), "an unknown one is no break"
    assert [b.reason for b in breaks_of([alone, (2, fabric(2))])] == ["into 2 hosts"]


def test_overhead_is_a_difference_of_seconds() -> None:
    # one device 100 ms; two 55 ms under strong scaling: 5 ms more than half
    found = overhead((0.100, 0.101, 0.099), (0.055, 0.0552, 0.0548), ideal_share=0.5, confidence=0.95)
    assert isinstance(found, Interval)
    assert found.centre == pytest.approx(0.005)
    # by hand: variances 1e-6/3/4 and 4e-8/3; t(2) at 97.5 % is 4.3027
    assert found.high - found.centre == pytest.approx(4.302653 * (1e-6 / 12 + 4e-8 / 3) ** 0.5, rel=1e-6)
    assert isinstance(overhead((0.1, 0.1), (0.05,) * 3, ideal_share=0.5, confidence=0.95), Unavailable)


def test_a_law_that_is_hardly_known_has_no_figure_of_how_well() -> None:
    found = Interval(
        low=0.1,
        high=1.7,
        centre=0.9,
        confidence=0.95,
        method="by hand",
        num_launches=3,
        num_samples=3,
        between_launches=True,
    )
    trial = LawTrial(num_devices=4, predicted=found, reach=3.4, measured=0.9, passed=True)
    said = f"without 4 devices {AMDAHL} is not measured well enough: it could not fail"
    assert reason_not_tried(trial, AMDAHL) == said
    some = reason_not_tried(replace(trial, reach=0.34), AMDAHL)
    assert some == f"without 4 devices {AMDAHL} is known to ±34 % only: it could not fail"
