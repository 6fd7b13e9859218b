"""Which calls go together, and what each caller is told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from common.frontier.pipeline import FULL, Answer, Pipeline
from common.frontier.scripts import Call
from common.model.errors import FrontierUnavailable, ScriptBug
from tests.support.waiting import until_true


class Trips:
    """Round trips that end when the test says so; what is called is told by its script's name."""

    def __init__(self) -> None:
        self.sent: list[list[list[str]]] = []
        self._ends: list[asyncio.Future[None]] = []

    async def send(self, groups: list[Sequence[Call]]) -> list[Answer]:
        self.sent.append([[one.script for one in group] for group in groups])
        self._ends.append(asyncio.get_running_loop().create_future())
        await self._ends[-1]
        return [
            ScriptBug(group[0].script)
            if "bad" in group[0].script
            else [one.script for one in group]
            for group in groups
        ]

    async def until_sent(self, count: int) -> None:
        await until_true(lambda: len(self.sent) >= count)

    def end(self, number: int, error: Exception | None = None) -> None:
        if error is None:
            self._ends[number].set_result(None)
        else:
            self._ends[number].set_exception(error)


def _call(name: str, *, size: int = 1) -> Call:
    return Call(name, [], [0] * size)


def _begun(pipeline: Pipeline, *names: str, size: int = 1) -> list[asyncio.Task[list[str]]]:
    return [asyncio.create_task(pipeline.call([_call(name, size=size)])) for name in names]


async def test_calls_of_one_turn_go_together_and_later_ones_in_the_next_trip() -> None:
    trips = Trips()
    pipeline = Pipeline(trips.send)
    first = _begun(pipeline, "a", "b")
    await trips.until_sent(1)
    later = _begun(pipeline, "c", "d", "e")
    await asyncio.sleep(0)
    assert trips.sent == [[["a"], ["b"]]]
    trips.end(0)
    assert await asyncio.gather(*first) == [["a"], ["b"]]
    await trips.until_sent(2)
    trips.end(1)
    assert await asyncio.gather(*later) == [["c"], ["d"], ["e"]]
    assert trips.sent[1:] == [[["c"], ["d"], ["e"]]]


async def test_where_very_much_waits_trips_go_beside_each_other() -> None:
    trips = Trips()
    pipeline = Pipeline(trips.send)
    calls = _begun(pipeline, "small")
    await trips.until_sent(1)
    calls += _begun(pipeline, "a", "b", "c", size=FULL // 2)
    await trips.until_sent(3)
    assert trips.sent == [[["small"]], [["a"], ["b"]], [["c"]]]
    for number in (2, 1, 0):
        trips.end(number)
    assert await asyncio.gather(*calls) == [["small"], ["a"], ["b"], ["c"]]


async def test_one_that_is_too_large_for_a_trip_goes_alone() -> None:
    trips = Trips()
    pipeline = Pipeline(trips.send)
    calls = _begun(pipeline, "huge", "huger", size=3 * FULL)
    await trips.until_sent(2)
    assert trips.sent == [[["huge"]], [["huger"]]]
    trips.end(0)
    trips.end(1)
    assert await asyncio.gather(*calls) == [["huge"], ["huger"]]


async def test_a_failed_script_is_told_to_its_caller_alone() -> None:
    trips = Trips()
    pipeline = Pipeline(trips.send)
    calls = _begun(pipeline, "a", "bad", "c")
    await trips.until_sent(1)
    trips.end(0)
    good, bad, other = await asyncio.gather(*calls, return_exceptions=True)
    assert (good, other) == (["a"], ["c"])
    assert isinstance(bad, ScriptBug)


async def test_where_there_was_no_answer_those_who_wait_get_none_and_the_next_is_sent() -> None:
    trips = Trips()
    pipeline = Pipeline(trips.send)
    calls = _begun(pipeline, "a")
    await trips.until_sent(1)
    calls += _begun(pipeline, "b", "c")
    await asyncio.sleep(0)
    trips.end(0, FrontierUnavailable("no answer"))
    told = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(one) for one in told] == ["no answer"] * 3
    (after,) = _begun(pipeline, "d")
    await trips.until_sent(2)
    trips.end(1)
    assert await after == ["d"]
    assert trips.sent == [[["a"]], [["d"]]]


async def test_a_cancelled_call_is_never_sent_and_harms_nobody() -> None:
    trips = Trips()
    pipeline = Pipeline(trips.send)
    on_the_way, beside = _begun(pipeline, "a", "b")
    await trips.until_sent(1)
    waiting, other = _begun(pipeline, "c", "d")
    await asyncio.sleep(0)
    on_the_way.cancel()
    waiting.cancel()
    await asyncio.sleep(0)
    trips.end(0)
    assert await beside == ["b"]
    await trips.until_sent(2)
    assert trips.sent[1] == [["d"]]
    trips.end(1)
    assert await other == ["d"]
    assert on_the_way.cancelled()
    assert waiting.cancelled()


async def test_closing_fails_what_is_under_way_and_what_waits() -> None:
    trips = Trips()
    pipeline = Pipeline(trips.send)
    calls = _begun(pipeline, "a")
    await trips.until_sent(1)
    calls += _begun(pipeline, "b")
    await asyncio.sleep(0)
    await pipeline.close()
    told = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in told] == [FrontierUnavailable] * 2


async def test_no_call_is_forgotten_whenever_it_comes() -> None:
    """Also one that comes in the very step in which a trip ends and nothing waits."""
    chance = random.Random(3)

    async def send(groups: list[Sequence[Call]]) -> list[Answer]:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        return [[one.script for one in group] for group in groups]

    pipeline = Pipeline(send)

    async def caller(name: str) -> None:
        for number in range(100):
            assert await pipeline.call([_call(f"{name}-{number}")]) == [f"{name}-{number}"]
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)

    for callers in (1, 2, 3, 20):
        async with asyncio.timeout(30):
            await asyncio.gather(*(caller(str(number)) for number in range(callers)))


async def test_a_bug_is_told_to_those_it_concerns() -> None:
    trips = Trips()
    pipeline = Pipeline(trips.send)
    calls = _begun(pipeline, "a")
    await trips.until_sent(1)
    calls += _begun(pipeline, "b")
    await asyncio.sleep(0)
    trips.end(0, KeyError("a"))
    with pytest.raises(KeyError):
        await calls[0]
    await trips.until_sent(2)
    trips.end(1)
    assert await calls[1] == ["b"]
