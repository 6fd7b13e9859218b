"""When a task claims: as soon as there is something, and not before."""

from __future__ import annotations

import asyncio
import time

import pytest

from common.frontier.replies import Claim
from common.model.ids import HostKey
from worker.agenda import AMPLE, Agenda

A, B, C = HostKey("a.example"), HostKey("b.example"), HostKey("c.example")
LONG_S = 30.0


def claim_of(host: HostKey, number: int = 1) -> Claim:
    return Claim(number, host, b"", "")


def agenda_of(lead_s: float = 0.0, *, per_host: int = 1) -> Agenda:
    return Agenda(lambda _host: lead_s, per_host=per_host)


def answered(
    agenda: Agenda,
    *ahead: tuple[HostKey, float],
    asked: tuple[Claim, ...] = (),
    delay_ms: int = 30_000,
) -> None:
    """One claim and its answer, in seconds."""
    agenda.asking()
    told = [(host, int(in_s * 1000)) for host, in_s in ahead]
    agenda.answered(told, asked, {claim.host: delay_ms for claim in asked}, time.monotonic())
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
    agenda = agenda_of()
    assert not await waits(agenda)
    agenda.asking()
    agenda.answered([(A, 100)], [], {}, time.monotonic())
    began = time.monotonic()
    await agenda.wait()
    assert 0.09 <= time.monotonic() - began < LONG_S


@pytest.mark.parametrize("lead_s", [0.0, 0.25])
def test_hosts_are_due_in_the_order_of_the_answer(lead_s: float) -> None:
    agenda = agenda_of(lead_s)
    answered(agenda, (B, 0), (A, 0.2), (C, 1))
    now = time.monotonic()
    assert agenda.due(now) == ([B, A] if lead_s else [B])
    assert agenda.due(now + 1) == [B, A, C]
    answered(agenda, (C, 0))
    assert agenda.due(time.monotonic()) == [C]


async def test_a_host_that_is_due_and_gave_nothing_is_not_asked_for_all_the_time() -> None:
    agenda = agenda_of()
    answered(agenda, (A, 0), (B, LONG_S))
    assert await waits(agenda)


@pytest.mark.parametrize("waiting_since_s", [0.0, 0.02])
async def test_what_is_expected_sooner_ends_a_wait(waiting_since_s: float) -> None:
    agenda = agenda_of()
    answered(agenda)
    waiting = asyncio.create_task(agenda.wait())
    await asyncio.sleep(waiting_since_s)
    agenda.expect(time.monotonic() + 0.05)
    agenda.expect(time.monotonic() + LONG_S)  # later than known: no matter
    async with asyncio.timeout(LONG_S / 2):
        await waiting


@pytest.mark.parametrize("host", [A, B])
async def test_links_to_a_known_host_change_nothing(host: HostKey) -> None:
    agenda = agenda_of()
    answered(agenda, (A, LONG_S), asked=(claim_of(B),))
    agenda.offered({host})
    assert await waits(agenda)
    agenda.offered({host, C})
    assert not await waits(agenda)


@pytest.mark.parametrize(("per_host", "delay_ms"), [(2, 30_000), (1, 0)])
async def test_links_to_a_host_that_may_be_asked_beside_its_request_are_claimed_at_once(
    per_host: int, delay_ms: int
) -> None:
    agenda = agenda_of(per_host=per_host)
    answered(agenda, asked=(claim_of(A),), delay_ms=delay_ms)
    assert await waits(agenda)
    agenda.offered({A})
    assert not await waits(agenda)


def test_hosts_are_claimed_ahead_of_their_time_where_places_are_plentiful() -> None:
    agenda = agenda_of(lead_s=0.05)
    delays_ms = {A: 1000, B: 0}
    assert {A: 50} == agenda.leads_ms(delays_ms, places=AMPLE)
    assert {} == agenda.leads_ms(delays_ms, places=AMPLE - 1)


async def test_links_that_come_during_a_claim_may_be_missing_in_its_answer() -> None:
    agenda = agenda_of()
    answered(agenda, (A, LONG_S))
    agenda.asking()
    agenda.offered({A})
    agenda.answered([], [], {}, time.monotonic())
    assert not await waits(agenda)


async def test_a_host_is_due_again_when_its_page_and_its_rest_are_over() -> None:
    agenda, now = agenda_of(), time.monotonic()
    answered(agenda, asked=(claim_of(A),))
    agenda.settled(1, rest_ms=int(LONG_S * 1000), ended_at=now)
    assert await waits(agenda)
    assert (agenda.due(now + LONG_S), agenda.due(now + LONG_S + 0.01)) == ([], [A])
    agenda.offered({A})
    assert await waits(agenda), "it is known when"


@pytest.mark.parametrize(("rest_ms", "has_response"), [(None, True), (0, True), (30_000, False)])
async def test_what_became_of_a_host_has_to_be_seen_where_it_is_not_known(
    rest_ms: int | None, *, has_response: bool
) -> None:
    agenda, now = agenda_of(), time.monotonic()
    answered(agenda, asked=(claim_of(A),))
    agenda.settled(1, rest_ms=rest_ms, ended_at=now if has_response else None)
    assert not await waits(agenda)


async def test_what_is_settled_during_a_claim_is_not_forgotten_for_its_answer() -> None:
    agenda, now = agenda_of(), time.monotonic()
    answered(agenda, asked=(claim_of(A),))
    agenda.asking()
    agenda.settled(1, rest_ms=1000, ended_at=now - 2)
    agenda.answered([(B, 0)], [], {}, now)
    assert agenda.due(now) == [B, A]
    assert not await waits(agenda)


async def test_a_claim_without_answer_leaves_what_was_known() -> None:
    agenda = agenda_of()
    answered(agenda, (A, 0))
    agenda.asking()
    agenda.unanswered()
    now = time.monotonic()
    assert agenda.due(now) == [A]
    agenda.expect(now + LONG_S)
    agenda.offered({A})
    assert await waits(agenda)
