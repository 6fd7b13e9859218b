"""When a task that is to move claims no more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from common.model.ids import HostKey
from worker.handover import SLOW_S, Handover, Page


class Pages:
    """Pages in flight."""

    def __init__(self) -> None:
        self.flying: list[Page] = []

    def add(self, *, age_s: float, ends_in_s: float, host: str = "h.example") -> None:
        working = asyncio.create_task(asyncio.sleep(ends_in_s))
        self.flying.append(Page(HostKey(host), working, time.monotonic() - age_s))


@pytest.fixture
async def pages() -> AsyncIterator[Pages]:
    pages = Pages()
    yield pages
    for page in pages.flying:
        page.working.cancel()


def moving() -> Handover:
    handover = Handover()
    handover.wish()
    return handover


async def test_it_is_over_at_once_with_nothing_in_flight(pages: Pages) -> None:
    handover = moving()
    assert await handover.is_over(pages.flying)
    assert handover.is_ending


async def test_pages_that_soon_end_are_waited_for(pages: Pages) -> None:
    pages.add(age_s=0.5, ends_in_s=0.1)
    pages.add(age_s=0.0, ends_in_s=0.2)
    handover = moving()
    over = asyncio.create_task(handover.is_over(pages.flying))
    await asyncio.sleep(0.05)
    assert handover.is_ending, "something would be sent that was not sent yet"
    assert await over
    assert all(page.working.done() for page in pages.flying)


async def test_a_slow_page_is_not_waited_for(pages: Pages) -> None:
    pages.add(age_s=SLOW_S + 0.1, ends_in_s=60, host="a.example")
    pages.add(age_s=0.0, ends_in_s=0.01)
    handover = moving()
    began = time.monotonic()
    assert not await handover.is_over(pages.flying)
    assert not handover.is_ending
    assert {"a.example"} == handover.slow_hosts
    assert time.monotonic() - began < 0.5


async def test_a_page_that_becomes_slow_is_waited_for_no_longer(pages: Pages) -> None:
    pages.add(age_s=SLOW_S - 0.2, ends_in_s=60)
    handover = moving()
    began = time.monotonic()
    assert not await handover.is_over(pages.flying)
    assert 0.15 < time.monotonic() - began < 60
    assert not handover.is_ending, "requests would not be sent though the task goes on"


async def test_slow_pages_of_later_are_waited_for_in_the_end(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.handover.PATIENCE_S", 0.1)
    monkeypatch.setattr("worker.handover.SLOW_S", 0.05)
    pages.add(age_s=60, ends_in_s=0.3)
    handover = moving()
    handover.wish()  # again, at each look: that gives no new patience
    pages.add(age_s=0, ends_in_s=0.6)
    await asyncio.sleep(0.15)
    assert not await handover.is_over(pages.flying), "the first was there before the wish"
    await asyncio.sleep(0.2)
    assert await handover.is_over(pages.flying)
    assert all(page.working.done() for page in pages.flying)


async def test_a_wish_may_be_withdrawn_until_it_is_over(pages: Pages) -> None:
    pages.add(age_s=SLOW_S, ends_in_s=60)
    handover = moving()
    assert not await handover.is_over(pages.flying)
    handover.withdraw()
    assert (False, set()) == (handover.is_wished, handover.slow_hosts)
    pages.flying.clear()
    pages.add(age_s=0, ends_in_s=0.1)
    handover.wish()
    over = asyncio.create_task(handover.is_over(pages.flying))
    await asyncio.sleep(0.02)
    handover.withdraw()
    assert not await over
    assert not handover.is_ending
    handover.wish()
    assert await handover.is_over(pages.flying)
    handover.withdraw()
    assert handover.is_ending, "its last is claimed"


async def test_pages_that_have_ended_are_not_slow(pages: Pages) -> None:
    """Only their settlement is still to be written."""
    pages.add(age_s=SLOW_S + 1, ends_in_s=0)
    await asyncio.sleep(0.01)
    assert await moving().is_over(pages.flying)
