"""One wait serves all who asked before it began, and nobody who asked later."""

from __future__ import annotations

import asyncio

import pytest

from common.frontier.barrier import Barrier
from tests.support.waiting import until_true


class Waits:
    """Waits that end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[asyncio.Future[str]] = []

    async def wait(self) -> str:
        self.begun.append(asyncio.get_running_loop().create_future())
        return await self.begun[-1]

    async def until_begun(self, count: int) -> None:
        await until_true(lambda: len(self.begun) >= count)


async def test_who_comes_during_a_wait_shares_the_next_one() -> None:
    waits = Waits()
    barrier = Barrier(waits.wait)
    first = [asyncio.create_task(barrier.passed()) for _ in range(3)]
    await waits.until_begun(1)
    later = [asyncio.create_task(barrier.passed()) for _ in range(3)]
    await asyncio.sleep(0)
    waits.begun[0].set_result("one")
    assert await asyncio.gather(*first) == ["one"] * 3
    await waits.until_begun(2)
    assert not any(one.done() for one in later)
    waits.begun[1].set_result("two")
    assert await asyncio.gather(*later) == ["two"] * 3
    assert len(waits.begun) == 2


async def test_a_failure_is_told_to_all_who_shared_it_and_to_nobody_else() -> None:
    waits = Waits()
    barrier = Barrier(waits.wait)
    first = [asyncio.create_task(barrier.passed()) for _ in range(2)]
    await waits.until_begun(1)
    first[0].cancel()  # the wait goes on for the other one
    later = asyncio.create_task(barrier.passed())
    await asyncio.sleep(0)
    waits.begun[0].set_exception(OSError("no answer"))
    with pytest.raises(OSError, match="no answer"):
        await first[1]
    await waits.until_begun(2)
    waits.begun[1].set_result("two")
    assert await later == "two"
    await barrier.close()
