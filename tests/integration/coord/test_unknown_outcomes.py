"""R12: writes whose reply is lost, and which may arrive long after they were given up.

A proxy between the client and etcd loses replies and holds requests; what etcd holds is read past
the proxy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from common.coord import Acquired, Assignment, Coord, Held, Session, buried_below, bury
from common.coord.wire import Put
from common.model.errors import LeaseLost, NotMaster, UnknownOutcome
from common.model.ids import JobId, NodeId, Token
from common.model.job import Job, JobSpec, JobState
from tests.integration.coord.conftest import Connect, OpenSession
from tests.support.servers import EtcdServer
from tests.support.tcpproxy import Late, TcpProxy
from tests.support.waiting import until, until_true

ANNA, BERT = NodeId("anna"), NodeId("bert")


class Setting(NamedTuple):
    """A process behind a faulty network, and one that sees etcd as it is."""

    server: EtcdServer
    proxy: TcpProxy
    coord: Coord
    session: Session
    direct: Coord

    async def key_holders(self, name: str) -> list[int]:
        """Return the token of the lock's key, if there is one."""
        found = await self.direct.etcd.get(self.direct.keys.lock(name))
        return [] if found is None else [found.create_revision]

    async def strand_what_is_sent(self, *, sent_after: int = 0) -> Late:
        """Wait for a held request, then break its connection; it is late from now on."""
        await until_true(lambda: self.proxy.held_bytes > sent_after)
        return max(await self.proxy.strand(), key=lambda late: late.size_bytes)

    async def arrive(self, late: Late) -> None:
        """Let a late transaction arrive; return once etcd has dealt with it."""
        before = self.server.handled("Txn")
        await late.deliver()
        await until_true(lambda: self.server.handled("Txn") > before)
        late.drop()


@pytest.fixture
async def setting(
    own_etcd: EtcdServer, connected: Connect, session_on: OpenSession
) -> AsyncIterator[Setting]:
    async with TcpProxy(own_etcd.endpoint) as proxy:
        coord = await connected(proxy.endpoint)
        session = await session_on(coord.etcd, ttl_s=20)
        yield Setting(own_etcd, proxy, coord, session, await connected(own_etcd.endpoint))
        proxy.is_refusing = proxy.is_losing_replies = False
        proxy.hold_from = None
        await session.close()


async def test_a_transaction_without_an_answer_is_unknown_and_not_repeated(
    setting: Setting,
) -> None:
    key = f"{setting.coord.keys.root}x"
    setting.proxy.is_losing_replies = True
    with pytest.raises(UnknownOutcome):
        # Without a guard, so that a second copy would show.
        await setting.coord.etcd.txn(compare=[], success=[Put(key, b"")], attempt_timeout_s=0.5)
    found = await setting.direct.etcd.get(key)
    assert found is not None
    assert found.create_revision == found.mod_revision, "written once"


async def test_a_lock_whose_reply_was_lost_is_recognised_as_ours(setting: Setting) -> None:
    setting.proxy.is_losing_replies = True
    acquiring = asyncio.create_task(
        setting.coord.locks.acquire(setting.session, "seeds", owner=ANNA)
    )
    (token,) = await until(lambda: setting.key_holders("seeds"))
    setting.proxy.is_losing_replies = False
    await setting.proxy.cut()

    assert await acquiring == Acquired(Token(token))
    assert await setting.key_holders("seeds") == [token]


async def test_a_lock_taken_meanwhile_by_another_with_the_same_name_is_not_taken_for_ours(
    setting: Setting, session_on: OpenSession
) -> None:
    setting.proxy.hold_from = b""
    acquiring = asyncio.create_task(
        setting.coord.locks.acquire(setting.session, "seeds", owner=ANNA)
    )
    late = await setting.strand_what_is_sent()
    setting.proxy.is_refusing = True
    rival = await session_on(setting.direct.etcd)
    theirs = await setting.direct.locks.acquire(rival, "seeds", owner=ANNA)
    assert isinstance(theirs, Acquired)
    setting.proxy.is_refusing = False

    assert await acquiring == Held("anna", theirs.token)
    await setting.arrive(late)
    assert await setting.key_holders("seeds") == [theirs.token]


async def test_a_late_request_does_not_take_a_released_lock_again(setting: Setting) -> None:
    """Without the door the late copy makes a lock under a live lease that nobody knows of."""
    setting.proxy.hold_from = b""
    acquiring = asyncio.create_task(
        setting.coord.locks.acquire(setting.session, "seeds", owner=ANNA)
    )
    late = await setting.strand_what_is_sent()
    answer = await acquiring
    assert isinstance(answer, Acquired)
    assert await setting.key_holders("seeds") == [answer.token]
    assert await setting.coord.locks.release("seeds", answer.token)

    await setting.arrive(late)
    assert await setting.key_holders("seeds") == []
    again = await setting.coord.locks.acquire(setting.session, "seeds", owner=ANNA)
    assert isinstance(again, Acquired)
    assert again.token > answer.token


async def test_a_late_request_does_not_disturb_the_present_owner(setting: Setting) -> None:
    setting.proxy.hold_from = b""
    acquiring = asyncio.create_task(
        setting.coord.locks.acquire(setting.session, "seeds", owner=ANNA)
    )
    late = await setting.strand_what_is_sent()
    answer = await acquiring
    assert isinstance(answer, Acquired)
    await setting.arrive(late)
    assert await setting.coord.locks.is_held("seeds", answer.token)


async def test_a_cancelled_acquisition_leaves_no_lock_not_even_later(setting: Setting) -> None:
    setting.proxy.hold_from = b""
    acquiring = asyncio.create_task(
        setting.coord.locks.acquire(setting.session, "seeds", owner=ANNA)
    )
    await until_true(lambda: setting.proxy.held_bytes)
    acquiring.cancel()
    late = await setting.strand_what_is_sent()
    with pytest.raises(asyncio.CancelledError):
        await acquiring

    assert await setting.key_holders("seeds") == []
    await setting.arrive(late)
    assert await setting.key_holders("seeds") == []


async def test_an_outcome_unknown_at_the_sessions_deadline_counts_as_not_owned(
    setting: Setting, session_on: OpenSession
) -> None:
    session = await session_on(setting.coord.etcd, ttl_s=2)
    setting.proxy.is_losing_replies = True
    started_at = time.monotonic()
    with pytest.raises(LeaseLost):
        await setting.coord.locks.acquire(session, "seeds", owner=ANNA)
    assert not session.is_live
    assert time.monotonic() - started_at < session.ttl_s

    async def gone() -> bool:
        return await setting.key_holders("seeds") == []

    await until(gone, within_s=2 * session.ttl_s + 5)
    setting.proxy.is_losing_replies = False
    await setting.proxy.cut()
    await session.close()


async def test_a_cancelled_campaign_leaves_no_master_not_even_later(setting: Setting) -> None:
    setting.proxy.hold_from = b""
    campaign = asyncio.create_task(setting.coord.election.campaign(setting.session, node=ANNA))
    await until_true(lambda: setting.proxy.held_bytes)
    campaign.cancel()
    late = await setting.strand_what_is_sent()
    with pytest.raises(asyncio.CancelledError):
        await campaign

    assert await setting.direct.election.leader() is None
    await setting.arrive(late)
    assert await setting.direct.election.leader() is None


async def test_an_election_whose_reply_was_lost_is_won_once(setting: Setting) -> None:
    setting.proxy.is_losing_replies = True
    campaign = asyncio.create_task(setting.coord.election.campaign(setting.session, node=ANNA))
    leader = await until(setting.direct.election.leader)
    setting.proxy.is_losing_replies = False
    await setting.proxy.cut()
    assert leader is not None
    assert await campaign == leader.term


async def test_a_job_stored_without_an_answer_is_stored_once(setting: Setting) -> None:
    job = Job(id="j", spec=JobSpec(), state=JobState.PENDING, created_at="2026-01-01T00:00:00Z")
    setting.proxy.is_losing_replies = True
    creating = asyncio.create_task(setting.coord.jobs.create(job))
    stored = await until(lambda: setting.direct.jobs.get("j"))
    setting.proxy.is_losing_replies = False
    await setting.proxy.cut()
    assert await creating == stored


async def test_a_late_change_of_a_job_is_refused(setting: Setting) -> None:
    job = Job(id="j", spec=JobSpec(), state=JobState.PENDING, created_at="2026-01-01T00:00:00Z")
    await setting.coord.jobs.create(job)
    stored = await setting.direct.jobs.get("j")
    assert stored is not None
    term = await setting.direct.election.campaign(setting.session, node=ANNA)
    setting.proxy.hold_from = b""
    replacing = asyncio.create_task(
        setting.coord.jobs.replace(job, expected=stored.revision, term=term)
    )
    late = await setting.strand_what_is_sent()
    await replacing
    await setting.direct.election.resign(term)
    now = await setting.direct.jobs.get("j")

    await setting.arrive(late)
    assert await setting.direct.jobs.get("j") == now
    assert now is not None
    with pytest.raises(NotMaster):
        await setting.coord.jobs.replace(job, expected=now.revision, term=term)


def empty_put_of(key: str) -> bytes:
    """Return how a transaction that writes an empty value is recognised on the wire."""
    return b"\x12" + bytes([len(key) + 2]) + b"\x0a" + bytes([len(key)]) + key.encode()


async def test_a_late_publication_does_not_bring_back_an_older_assignment(
    setting: Setting,
) -> None:
    """Both copies are of the present term, so the term alone would let it in."""
    coord, workers = setting.coord, setting.coord.assignments
    term = await coord.election.campaign(setting.session, node=ANNA)
    setting.proxy.hold_from = b'{"version":1'
    publishing = asyncio.create_task(
        workers.publish({BERT: {JobId("j"): [1]}}, version=1, term=term)
    )
    late = await setting.strand_what_is_sent()
    await publishing
    await workers.publish({BERT: {JobId("j"): [2]}}, version=2, term=term)
    await setting.arrive(late)
    assert await workers.load() == (2, {BERT: Assignment(version=2, tasks={"j": [2]})})


async def test_a_late_burial_does_not_bury_those_who_came_after_it(setting: Setting) -> None:
    coord = setting.coord
    setting.proxy.hold_from = empty_put_of(coord.keys.buried)
    burying = asyncio.create_task(bury(coord.etcd, coord.keys))
    late = await setting.strand_what_is_sent()
    revision = await burying
    alive = await coord.locks.acquire(setting.session, "seeds", owner=ANNA)
    assert isinstance(alive, Acquired)
    await setting.arrive(late)
    assert await buried_below(coord.etcd, coord.keys) == revision < alive.token
