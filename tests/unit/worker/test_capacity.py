"""Places shared by the weights of the jobs that want them."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.capacity import Capacity, Share, weight


class Job:
    """A job with endless work: reserves again and again, and ends its pages oldest first."""

    def __init__(self, share: Share, *, batch: int = 32) -> None:
        self.share = share
        self.pages: deque[None] = deque()
        self.done = 0
        self._batch = batch
        self.running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            self.pages.extend([None] * await self.share.reserve(self._batch))

    def end_one(self) -> None:
        if self.pages:
            self.pages.popleft()
            self.done += 1
            self.share.give_back(1)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def end_in_turn(jobs: list[Job], pages: int) -> None:
    """End pages as if each took equally long: a job with more places ends more of them."""
    for _ in range(pages):
        oldest = max(jobs, key=lambda job: len(job.pages))
        for job in jobs:
            for _ in range(round(4 * len(job.pages) / max(1, len(oldest.pages)))):
                job.end_one()
                await settle()


async def stop(*jobs: Job) -> None:
    for job in jobs:
        job.running.cancel()
    await asyncio.gather(*(job.running for job in jobs), return_exceptions=True)


@pytest.mark.parametrize(("priorities", "expected"), [((0, 0), (16, 16)), ((2, 0), (26, 6))])
async def test_a_new_job_comes_to_hold_its_part_as_pages_of_the_other_end(
    priorities: tuple[int, int], expected: tuple[int, int]
) -> None:
    capacity = Capacity(32)
    first, second = (capacity.share(weight=weight(one)) for one in priorities)
    old = Job(first)
    await settle()
    assert 32 == first.in_use
    new = Job(second)
    await end_in_turn([old, new], 60)
    held = (first.in_use, second.in_use)
    assert all(abs(one - other) <= 1 for one, other in zip(held, expected, strict=True)), held
    await stop(old, new)


async def test_a_job_alone_may_take_every_place_whatever_its_priority() -> None:
    capacity = Capacity(8)
    assert 8 == await capacity.share(weight=weight(-5)).reserve(32)
    assert 8 == capacity.in_use


async def test_a_waiting_job_is_served_although_another_asks_again_at_once() -> None:
    capacity = Capacity(2)
    greedy, patient = capacity.share(weight=1024.0), capacity.share(weight=1 / 1024)
    assert 2 == await greedy.reserve(32)
    waiting = asyncio.create_task(patient.reserve(1))
    await settle()
    greedy.give_back(2)
    again = asyncio.create_task(greedy.reserve(32))
    assert 1 == await asyncio.wait_for(waiting, 1)
    assert 1 == await asyncio.wait_for(again, 1)


async def test_who_gives_up_waiting_takes_no_place() -> None:
    capacity = Capacity(1)
    share = capacity.share(weight=1.0)
    assert 1 == await share.reserve(1)
    gone = asyncio.create_task(share.reserve(1))
    granted = asyncio.create_task(share.reserve(1))
    await settle()
    gone.cancel()
    await settle()
    share.give_back(1)
    # Cancelled after it was granted, and before it knew.
    granted.cancel()
    with pytest.raises(asyncio.CancelledError):
        await granted
    assert 0 == capacity.in_use == share.in_use
    assert 1 == await asyncio.wait_for(share.reserve(1), 1)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["reserve", "give", "cancel"])), max_size=60
    )
)
async def test_places_are_neither_lost_nor_made_and_nobody_waits_beside_a_free_one(
    steps: list[tuple[int, str]],
) -> None:
    capacity = Capacity(5)
    shares = [capacity.share(weight=weight(one)) for one in (0, 1, 3)]
    asked: list[list[asyncio.Task[int]]] = [[], [], []]
    held = [0, 0, 0]
    for who, step in steps:
        if step == "reserve":
            asked[who].append(asyncio.create_task(shares[who].reserve(3)))
        elif step == "give" and held[who]:
            held[who] -= 1
            shares[who].give_back(1)
        elif step == "cancel" and asked[who]:
            asked[who].pop().cancel()
        await settle()
        for number, tasks in enumerate(asked):
            for task in [task for task in tasks if task.done()]:
                tasks.remove(task)
                if not task.cancelled():
                    held[number] += task.result()
        assert held == [share.in_use for share in shares]
        assert sum(held) == capacity.in_use <= 5
        assert capacity.in_use == 5 or not any(asked)
    for task in (task for tasks in asked for task in tasks):
        task.cancel()
    await settle()


def test_priorities_beyond_the_steepest_weigh_alike() -> None:
    assert 1.0 == weight(0)
    assert 2 * weight(3) == weight(4)
    assert weight(10) == weight(2**53 - 1)
    assert weight(-10) == weight(-(2**53) + 1)


async def test_who_is_alone_is_the_only_one_at_work_and_then_all_go_on() -> None:
    capacity = Capacity(8)
    jobs = [capacity.share(weight=1.0) for _ in range(2)]
    pages = [await share.reserve(4) for share in jobs]
    assert [4, 4] == pages
    told: list[int] = []

    async def loner(share: Share) -> None:
        async with share.alone():
            told.append(capacity.in_use)
            await settle()
        share.give_back(1)

    loners = [asyncio.create_task(loner(share)) for share in jobs]
    await settle()
    waiting = asyncio.create_task(jobs[0].reserve(8))
    for share in jobs:
        for _ in range(3):
            assert [] == told
            share.give_back(1)
            await settle()
    await asyncio.gather(*loners)
    # The second to go is in its turn the only one that works: the first has left.
    assert [2, 1] == told
    assert await waiting  # and others begin again


async def test_who_waits_to_be_alone_and_is_cancelled_holds_up_nobody() -> None:
    capacity = Capacity(2)
    share = capacity.share(weight=1.0)
    assert 2 == await share.reserve(2)

    async def loner() -> None:
        async with share.alone():
            pytest.fail("another page was at work all the time")

    waiting = asyncio.create_task(loner())
    await settle()
    reserving = asyncio.create_task(share.reserve(1))
    await settle()
    waiting.cancel()
    await settle()
    assert not reserving.done()
    share.give_back(1)  # its page has ended, too
    assert 1 == await reserving
