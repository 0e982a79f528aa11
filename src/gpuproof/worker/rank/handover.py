"""The journals of failed ranks of other hosts, sent to rank 0 over the store of the ranks.

In: the store at MASTER_ADDR, which may be gone with the host that kept it: nothing here
waits for longer than a few seconds, or raises. What does not come is said by rank 0's campaign, which
knows from the first record of each rank on which host it was.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any

LAST_WORDS_S = 8.0
"""Ranks fail within seconds of each other: a closed connection is noticed at once by all of its ends. And
rank 0 must be done before the time for last words is over that whoever ends it gives it."""


def hand_over_last_words(store: Any, rank: int, content: str) -> bool:
    """Give a failed rank's journal to rank 0; say whether the store still took it."""
    return _within(LAST_WORDS_S, lambda: store.set(f"failed/{rank}", content))


def collect_last_words(store: Any, ranks: Sequence[int]) -> list[tuple[int, str]]:
    """Return the journals of the other ranks that come in time, those that were finished too."""
    last_words: list[tuple[int, str]] = []
    deadline_s = monotonic() + LAST_WORDS_S

    def collect() -> None:
        for rank in ranks:
            left_s = max(0.01, deadline_s - monotonic())
            key = _first_set(store, [f"failed/{rank}", f"journal/{rank}"], left_s)
            if key is not None:
                last_words.append((rank, store.get(key).decode()))

    _within(LAST_WORDS_S * 2, collect)
    return list(last_words)


def _first_set(store: Any, keys: Sequence[str], timeout_s: float) -> str | None:
    for key in reversed(keys):
        if store.check([key]):
            return key
    try:
        store.wait([keys[0]], timedelta(seconds=timeout_s))
    except RuntimeError:  # torch raises it for a time-out: the rank was killed, or its host is cut off
        return None
    return keys[0]


def _within(limit_s: float, action: Callable[[], None]) -> bool:
    """Do it in a thread, since a store whose host is gone may block for ever; say whether it was done."""
    done = threading.Event()

    def attempt() -> None:
        try:
            action()
            done.set()
        except RuntimeError as error:
            sys.stderr.write(f"gpuproof: the store of the ranks is gone: {error}\n")

    thread = threading.Thread(target=attempt, name="gpuproof-handover", daemon=True)
    thread.start()
    thread.join(limit_s)
    return done.is_set()
