"""The turns of a host, and of a group that others want as well: what Redis hears of them, when."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from common.frontier.pace import Ask, Permit
from common.model.ids import GroupKey, HostKey
from tests.support.waiting import until_true
from worker.turns import Turns

LATER_S = 60.0


class _Desk:
    """Hands over what is asked, and grants what the test says."""

    def __init__(self) -> None:
        self.asked: list[Ask] = []
        self.turns = Turns(GroupKey("domain:example.org"), 4, self, is_lent=True)
        self.serials = itertools.count(1)

    def ask(self, turns: Turns) -> None:
        self.asked.append(turns.say(time.monotonic(), serial=next(self.serials)))

    def forget(self, turns: Turns) -> None:
        assert turns.is_idle

    def grant(self, permits: int, *, others: int, delay_ms: int = 0) -> None:
        answer = Permit(permits, 0, delay_ms, 0 if permits else 50, others)
        self.turns.take(self.asked[-1], answer, sent_at=time.monotonic(), again_s=1.0)

    async def asked_times(self, count: int) -> Ask:
        await until_true(lambda: len(self.asked) >= count)
        return self.asked[count - 1]


async def test_what_lies_idle_goes_back_where_others_want_it() -> None:
    desk = _Desk()
    turn = asyncio.create_task(desk.turns.start(0.0, before=time.monotonic() + LATER_S))
    assert 4 == (await desk.asked_times(1)).want, "nobody else is known of"
    desk.grant(2, others=1)
    assert await turn is None
    told = await desk.asked_times(2)
    assert (1, 0) == (told.on_wire, told.want), "the second permit was of no use"
    desk.grant(0, others=1)
    desk.turns.ended()
    told = await desk.asked_times(3)
    assert (0, 0) == (told.on_wire, told.want)
    desk.turns.stop()


async def test_no_more_is_asked_for_than_is_needed_where_others_want_some() -> None:
    desk = _Desk()
    starts = [
        asyncio.create_task(desk.turns.start(0.0, before=time.monotonic() + LATER_S))
        for _ in range(3)
    ]
    await desk.asked_times(1)
    desk.grant(1, others=2)
    assert 2 == (await desk.asked_times(2)).want, "as many as wait"
    desk.grant(2, others=2)
    assert [None] * 3 == await asyncio.gather(*starts)
    desk.turns.stop()


@pytest.mark.parametrize(("others", "calls"), [(0, 2), (1, 3)])
async def test_the_end_of_a_request_is_told_with_the_next_one_unless_others_wait(
    others: int, calls: int
) -> None:
    """With a delay nobody may start before, and a call for each end would be one more a page."""
    delay_s = 0.2
    desk = _Desk()
    desk.turns = Turns(HostKey("http://a.example"), 1, desk)
    for call in (1, calls):
        turn = asyncio.create_task(desk.turns.start(delay_s, before=time.monotonic() + LATER_S))
        asked = await desk.asked_times(call)
        assert asked.want == 1
        assert (asked.ended_ago_ms >= 0) == (call == 2)
        desk.grant(1, others=others, delay_ms=int(delay_s * 1000))
        assert await turn is None
        desk.turns.ended()
        if others and call == 1:
            told = await desk.asked_times(2)
            assert (0, 0, 0) == (told.on_wire, told.want, told.ended_ago_ms // 100)
            desk.grant(0, others=others, delay_ms=int(delay_s * 1000))
    ended_at = time.monotonic()
    told = await desk.asked_times(calls + 1)
    assert (0, 0) == (told.on_wire, told.want)
    assert (time.monotonic() - ended_at < delay_s / 2) == bool(others)
    desk.turns.stop()
