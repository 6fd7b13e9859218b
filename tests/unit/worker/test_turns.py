"""The turns of a group that others want as well."""

from __future__ import annotations

import asyncio
import itertools
import time

from common.frontier.pace import Ask, Permit
from common.model.ids import GroupKey
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

    def grant(self, permits: int, *, others: int) -> None:
        answer = Permit(permits, 0, 0, 0 if permits else 50, others)
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
