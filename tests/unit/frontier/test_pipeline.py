"""Which calls go together, and what each caller is told."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

import pytest

from common.frontier import pipeline as pipelines
from common.frontier.pipeline import ENOUGH, FULL, Answer, Pipeline, Take
from common.frontier.scripts import Call
from common.model.errors import FrontierUnavailable, ScriptBug
from tests.support.waiting import until_true


class Trips:
    """Round trips that end when the test says so; what is called is told by its script's name."""

    def __init__(self, *, is_connected: bool = True) -> None:
        self.sent: list[list[str]] = []
        self._ends: list[asyncio.Future[None]] = []
        self.connected = asyncio.Event()
        if is_connected:
            self.connected.set()

    async def send(self, take: Take) -> list[Answer]:
        await self.connected.wait()
        groups = take()
        self.sent.append([group[0].script for group in groups])
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


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trip under way is waited for; the tests where it is not say so."""
    monkeypatch.setattr(pipelines, "LINGER_S", 60.0)


def _made(trips: Trips, *, most: int = 8) -> Pipeline:
    return Pipeline(trips.send, most=most)


def _call(name: str, *, size: int = 1) -> Call:
    return Call(name, [], [0] * size)


def _begun(pipeline: Pipeline, *names: str, size: int = 1) -> list[asyncio.Task[list[str]]]:
    return [asyncio.create_task(pipeline.call([_call(name, size=size)])) for name in names]


async def test_calls_of_one_turn_go_together_and_later_ones_in_the_next_trip() -> None:
    trips = Trips()
    pipeline = _made(trips)
    first = _begun(pipeline, "a", "b")
    await trips.until_sent(1)
    later = _begun(pipeline, "c", "d", "e")
    await asyncio.sleep(0)
    assert trips.sent == [["a", "b"]]
    trips.end(0)
    assert await asyncio.gather(*first) == [["a"], ["b"]]
    await trips.until_sent(2)
    trips.end(1)
    assert await asyncio.gather(*later) == [["c"], ["d"], ["e"]]
    assert trips.sent[1:] == [["c", "d", "e"]]


async def test_a_trip_that_takes_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "LINGER_S", 0.05)
    trips = Trips()
    pipeline = _made(trips)
    calls = _begun(pipeline, "slow")
    await trips.until_sent(1)
    began = time.monotonic()
    calls += _begun(pipeline, "a", "b")
    await trips.until_sent(2)
    assert time.monotonic() - began > 0.04
    calls += _begun(pipeline, "c")
    await trips.until_sent(3)
    assert trips.sent == [["slow"], ["a", "b"], ["c"]]
    for number in (2, 1, 0):
        trips.end(number)
    assert await asyncio.gather(*calls) == [["slow"], ["a"], ["b"], ["c"]]


async def test_where_enough_waits_it_goes_beside_at_once() -> None:
    trips = Trips()
    pipeline = _made(trips)
    calls = _begun(pipeline, "small")
    await trips.until_sent(1)
    calls += _begun(pipeline, "a", "b", size=ENOUGH // 2)
    await trips.until_sent(2)
    assert trips.sent == [["small"], ["a", "b"]]
    trips.end(1)
    trips.end(0)
    assert await asyncio.gather(*calls) == [["small"], ["a"], ["b"]]


async def test_a_trip_carries_no_more_than_it_may_and_there_are_no_more_than_may_be() -> None:
    trips = Trips()
    pipeline = _made(trips, most=2)
    calls = _begun(pipeline, "huge", "huger", "c", size=FULL + 1)
    await trips.until_sent(2)
    await asyncio.sleep(0.05)
    assert trips.sent == [["huge"], ["huger"]]
    trips.end(1)
    await trips.until_sent(3)
    assert trips.sent[2] == ["c"]
    trips.end(0)
    trips.end(2)
    assert await asyncio.gather(*calls) == [["huge"], ["huger"], ["c"]]


async def test_a_failed_script_is_told_to_its_caller_alone() -> None:
    trips = Trips()
    calls = _begun(_made(trips), "a", "bad", "c")
    await trips.until_sent(1)
    trips.end(0)
    good, bad, other = await asyncio.gather(*calls, return_exceptions=True)
    assert (good, other) == (["a"], ["c"])
    assert isinstance(bad, ScriptBug)


@pytest.mark.parametrize("error", [FrontierUnavailable("no answer"), KeyError("a bug")])
async def test_a_trip_that_fails_is_told_to_those_in_it_alone(error: Exception) -> None:
    trips = Trips()
    pipeline = _made(trips)
    calls = _begun(pipeline, "a", "b")
    await trips.until_sent(1)
    calls += _begun(pipeline, "c")
    await asyncio.sleep(0)
    trips.end(0, error)
    await trips.until_sent(2)
    trips.end(1)
    assert await asyncio.gather(*calls, return_exceptions=True) == [error, error, ["c"]]
    assert trips.sent == [["a", "b"], ["c"]]


async def test_where_there_is_no_connection_those_who_wait_for_it_are_told() -> None:
    async def refuse(take: Take) -> list[Answer]:
        raise FrontierUnavailable("refused")

    pipeline = Pipeline(refuse, most=2)
    told = await asyncio.gather(*_begun(pipeline, "a", "b", "c"), return_exceptions=True)
    assert [str(one) for one in told] == ["refused"] * 3


async def test_a_cancelled_call_is_never_sent_and_harms_nobody() -> None:
    trips = Trips(is_connected=False)
    pipeline = _made(trips)
    waiting, beside = _begun(pipeline, "a", "b")
    await asyncio.sleep(0.05)  # a connection is being made
    waiting.cancel()
    await asyncio.sleep(0)
    trips.connected.set()
    await trips.until_sent(1)
    assert trips.sent == [["b"]]
    beside.cancel()  # on its way
    (other,) = _begun(pipeline, "c")
    await asyncio.sleep(0)
    trips.end(0)
    await trips.until_sent(2)
    trips.end(1)
    assert await other == ["c"]
    assert waiting.cancelled()
    assert beside.cancelled()


async def test_closing_fails_what_is_under_way_what_waits_and_what_comes_later() -> None:
    trips = Trips()
    pipeline = _made(trips)
    calls = _begun(pipeline, "a")
    await trips.until_sent(1)
    calls += _begun(pipeline, "b")
    await asyncio.sleep(0)
    closing = asyncio.create_task(pipeline.close())
    await asyncio.sleep(0)
    calls += _begun(pipeline, "c")
    await closing
    told = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in told] == [FrontierUnavailable] * 3
    assert trips.sent == [["a"]]


async def test_no_call_is_forgotten_whenever_it_comes() -> None:
    """Also one that comes in the very step in which a trip ends and nothing waits."""
    chance = random.Random(3)

    async def send(take: Take) -> list[Answer]:
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        groups = take()
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        return [_names(group) for group in groups]

    pipeline = Pipeline(send, most=2)

    async def caller(name: str) -> None:
        for number in range(100):
            size = chance.choice([1, 1, 1, ENOUGH, FULL])
            said = await pipeline.call([_call(f"{name}-{number}", size=size)])
            assert said == [f"{name}-{number}"]
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)

    for callers in (1, 2, 3, 20):
        async with asyncio.timeout(30):
            await asyncio.gather(*(caller(str(number)) for number in range(callers)))


def _names(group: Sequence[Call]) -> list[str]:
    return [one.script for one in group]
