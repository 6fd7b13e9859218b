"""When a task claims: as soon as there is something, and not before."""

from __future__ import annotations

import asyncio
import time

import pytest

from common.frontier.replies import Claim
from common.model.ids import HostKey
from worker.agenda import Agenda

A, B, C = HostKey("a.example"), HostKey("b.example"), HostKey("c.example")
LONG_S = 30.0


def claim_of(host: HostKey, number: int = 1) -> Claim:
    return Claim(number, host, b"", "")


def answered(agenda: Agenda, *ahead: tuple[HostKey, float], asked: tuple[Claim, ...] = ()) -> None:
    """One claim and its answer, after which nothing is expected for long."""
    agenda.asking()
    agenda.answered(ahead, asked)
    agenda.expect(time.monotonic() + LONG_S)


async def waits(agenda: Agenda) -> bool:
    """Tell whether nothing is expected now."""
    try:
        async with asyncio.timeout(0.05):
            await agenda.wait()
    except TimeoutError:
        return True
    return False


async def test_a_new_one_claims_at_once_and_then_waits_for_the_time_it_was_told() -> None:
    agenda = Agenda()
    assert not await waits(agenda)
    agenda.asking()
    agenda.answered([], [])
    agenda.expect(time.monotonic() + 0.1)
    began = time.monotonic()
    await agenda.wait()
    assert 0.09 <= time.monotonic() - began < LONG_S


def test_hosts_are_due_in_the_order_of_the_answer() -> None:
    agenda, now = Agenda(), time.monotonic()
    answered(agenda, (B, now - 1), (A, now), (C, now + 1))
    assert agenda.due(now) == [B, A]
    answered(agenda, (C, now))
    assert agenda.due(now) == [C]


@pytest.mark.parametrize("waiting_since_s", [0.0, 0.02])
async def test_what_is_expected_sooner_ends_a_wait(waiting_since_s: float) -> None:
    agenda = Agenda()
    answered(agenda)
    waiting = asyncio.create_task(agenda.wait())
    await asyncio.sleep(waiting_since_s)
    agenda.expect(time.monotonic() + 0.05)
    agenda.expect(time.monotonic() + LONG_S)  # later than known: no matter
    async with asyncio.timeout(LONG_S / 2):
        await waiting


@pytest.mark.parametrize("host", [A, B])
async def test_links_to_a_known_host_change_nothing(host: HostKey) -> None:
    agenda, now = Agenda(), time.monotonic()
    answered(agenda, (A, now + LONG_S), asked=(claim_of(B),))
    agenda.offered({host})
    assert await waits(agenda)
    agenda.offered({host, C})
    assert not await waits(agenda)


async def test_links_that_come_during_a_claim_may_be_missing_in_its_answer() -> None:
    agenda = Agenda()
    answered(agenda, (A, time.monotonic() + LONG_S))
    agenda.asking()
    agenda.offered({A})
    agenda.answered([], [])
    assert not await waits(agenda)


async def test_a_host_is_due_again_when_its_page_and_its_rest_are_over() -> None:
    agenda, now = Agenda(), time.monotonic()
    answered(agenda, asked=(claim_of(A),))
    agenda.settled(1, rests_until=now + LONG_S)
    assert await waits(agenda)
    assert (agenda.due(now), agenda.due(now + LONG_S)) == ([], [A])
    agenda.offered({A})
    assert await waits(agenda), "it is known when"
    agenda.settled(7, rests_until=0.0)
    assert not await waits(agenda), "what became of it has to be seen"


async def test_what_is_settled_during_a_claim_is_not_forgotten_for_its_answer() -> None:
    agenda, now = Agenda(), time.monotonic()
    answered(agenda, asked=(claim_of(A),))
    agenda.asking()
    agenda.settled(1, rests_until=now)
    agenda.answered([(B, now)], [])
    assert agenda.due(now) == [B, A]
    assert not await waits(agenda)


async def test_a_claim_without_answer_leaves_what_was_known() -> None:
    agenda, now = Agenda(), time.monotonic()
    answered(agenda, (A, now))
    agenda.asking()
    agenda.unanswered()
    assert agenda.due(now) == [A]
    agenda.expect(now + LONG_S)
    agenda.offered({A})
    assert await waits(agenda)
