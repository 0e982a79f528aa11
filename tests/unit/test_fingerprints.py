"""Whose bits are wrong? By majority where there is one, and nobody is accused where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from gpuproof.suites.probe.fingerprints import WRONG, Fingerprint, FingerprintsCompared, compare_fingerprints


def compared(*devices: str, kinds: str = "") -> FingerprintsCompared:
    """Each device is a text of digests, one letter a round; `kinds` names the model of each."""
    return compare_fingerprints(
        Fingerprint(
            subject=f"host/h{number // 2}/gpu/{number}",
            kind=(kinds or "A" * len(devices))[number],
            work="gemm in fp32",
            round_number=place,
            digest=letter,
        )
        for number, rounds in enumerate(devices)
        for place, letter in enumerate(rounds)
    )


@pytest.mark.parametrize(
    ("devices", "verdicts"),
    [
        (["xxx", "xxx"], ["agrees", "agrees"]),
        (["xxx", "yyy", "xxx"], ["agrees", "always wrong", "agrees"]),
        (["xxx", "xyx", "xxx"], ["agrees", "sometimes wrong", "agrees"]),
        (["xxx", "yyy"], ["cannot tell", "cannot tell"]),
        (["xxx", "xyx"], ["agrees", "sometimes wrong"]),
        (["xx", "xx", "yy", "yy"], ["cannot tell"] * 4),
        (["xxx"], ["repeats itself"]),
        (["x"], ["cannot tell"]),
        (["xyx"], ["contradicts itself"]),
        (["xxx", "yzy"], ["cannot tell", "contradicts itself"]),
        (["xxx", "xxx", "xxx", "abc"], ["agrees", "agrees", "agrees", "always wrong"]),
    ],
)
def test_verdicts(devices: list[str], verdicts: list[str]) -> None:
    assert [device.verdict for device in compared(*devices).devices] == verdicts


def test_devices_of_different_models_are_not_compared() -> None:
    found = compared("xx", "yy", kinds="AB")
    assert [device.verdict for device in found.devices] == ["repeats itself", "repeats itself"]
    once = compared("x", "y", kinds="AB").devices[0]
    assert (once.verdict, "no other device of this model" in once.reason) == ("cannot tell", True)
    assert found.differing == ()


def of_widths(*devices: tuple[str, str | None]) -> FingerprintsCompared:
    """Each device has a digest of the smallest width, and one of the largest if it got so far."""
    return compare_fingerprints(
        Fingerprint(
            subject=f"host/h/gpu/{number}",
            kind="A",
            work=f"gemm, {width} wide",
            round_number=0,
            digest=digest,
        )
        for number, digests in enumerate(devices)
        for width, digest in zip((256, 2048), digests, strict=True)
        if digest is not None
    )


@pytest.mark.parametrize(
    ("devices", "verdicts"),
    [
        ([("x", "y"), ("x", None), ("x", None)], ["agrees"] * 3),
        ([("z", "y"), ("x", None), ("x", None)], ["always wrong", "agrees", "agrees"]),
        ([("x", "y"), ("x", "z"), ("x", None)], ["cannot tell", "cannot tell", "agrees"]),
        ([("x", "y"), ("w", "z"), ("x", None)], ["agrees", "always wrong", "agrees"]),
        (
            [("x", "y"), ("w", "z"), ("x", "y"), ("x", "v")],
            ["agrees", "always wrong", "agrees", "always wrong"],
        ),
        ([("x", "y"), ("x", "y"), ("x", "z")], ["agrees", "agrees", "always wrong"]),
    ],
)
def test_a_width_that_one_device_alone_got_to_says_nothing_of_it(
    devices: list[tuple[str, str | None]], verdicts: list[str]
) -> None:
    assert [device.verdict for device in of_widths(*devices).devices] == verdicts


def test_two_that_differ_are_told_together() -> None:
    assert compared("xx", "yy").differing == ("A",)
    assert compared("xx", "xx").differing == ()


def test_how_many_disagree_in_each_round() -> None:
    found = compared("xx", "xy", "xx")
    assert [found.disagreeing["A", "gemm in fp32", place] for place in (0, 1)] == [0, 1]


def test_a_majority_of_wrong_devices_would_accuse_the_others_and_is_what_it_takes() -> None:
    """With two of three wrong in the same bits the third is accused: that is the limit of the method."""
    assert [d.verdict for d in compared("xx", "yy", "yy").devices] == ["always wrong", "agrees", "agrees"]


@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_an_unsteady_device_is_named_as_often_as_it_shows_and_nobody_else_ever(rate: float) -> None:
    """A device that is wrong in a share of its rounds, in other bits each time, among eight, ten rounds."""
    draw, named, others = np.random.default_rng(7), 0, 0
    fleets = 400
    for _ in range(fleets):
        wrong = draw.random(10) < rate
        unsteady = "".join(chr(ord("a") + place) if bad else "x" for place, bad in enumerate(wrong))
        found = compared(*["x" * 10] * 7, unsteady)
        accused = {device.subject for device in found.devices if device.verdict in WRONG}
        named += any(subject.endswith("/7") for subject in accused) == bool(wrong.any())
        others += any(not subject.endswith("/7") for subject in accused)
    assert named == fleets
    assert others == 0
