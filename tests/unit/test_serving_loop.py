"""The loop of the load client: as that of asyncio, with timers that are not rounded up."""

from __future__ import annotations

import asyncio
import os
import select
import selectors

import pytest

from gpuproof.worker.serving.clients import PreciseSelector, run_precisely


def test_a_wait_is_passed_on_as_it_is_and_epoll_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(select, "select", lambda *lists_and_time: waits.append(lists_and_time[-1]))
    with PreciseSelector() as selector:
        assert selector.select(0.0001) == []
        assert selector.select(0) == []
        assert waits == [0.0001]


def test_what_is_ready_ends_a_wait() -> None:
    read, write = os.pipe()
    with PreciseSelector() as selector:
        selector.register(read, selectors.EVENT_READ)
        os.write(write, b"x")
        ((key, _),) = selector.select(3600.0)
        assert key.fd == read
    os.close(read)
    os.close(write)


def test_the_result_or_the_error_of_the_coroutine_comes_out_and_tasks_end() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("cancelled")

    async def work(error: Exception | None) -> int:
        task = asyncio.ensure_future(forever())
        await asyncio.sleep(0.0001)
        assert not task.done()
        if error is not None:
            raise error
        return 7

    assert run_precisely(work(None)) == 7
    with pytest.raises(ValueError, match="seven"):
        run_precisely(work(ValueError("seven")))
    assert ended == ["cancelled"] * 2
