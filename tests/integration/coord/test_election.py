"""The election and what a term guards, against a real etcd."""

from __future__ import annotations

import asyncio

import pytest

from common.coord import Coord, Leader, NodeInfo, Session, StoredJob
from common.coord.wire import KeyValue, Put
from common.model.errors import LeaseLost, NotMaster
from common.model.ids import JobId, NodeId, Term, Token
from common.model.job import Job, JobSpec, JobState
from tests.integration.coord.conftest import Connect, OpenSession
from tests.support.servers import EtcdServer
from tests.support.tcpproxy import TcpProxy
from tests.support.waiting import until, until_true

ANNA, BERT = NodeId("anna"), NodeId("bert")


async def waiting_candidate(coord: Coord, session: Session, node: NodeId) -> asyncio.Task[Term]:
    """Return a campaign that waits for the present master."""
    campaign = asyncio.create_task(coord.election.campaign(session, node=node))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(campaign), 0.3)
    return campaign


async def put_by_hand(coord: Coord, session: Session) -> Term:
    """Make somebody master behind everybody's back."""
    put = Put(
        coord.keys.election, b'{"node":"eve","nonce":"-","acquired_at":"2026-01-01T00:00:00Z"}',
        session.lease,
    )  # fmt: skip
    return Term((await coord.etcd.txn(compare=(), success=[put])).revision)


async def revoked(coord: Coord, session: Session) -> None:
    """End a session as its process's death would."""
    await coord.etcd.revoke(session.lease)


async def test_the_term_is_the_create_revision_of_the_election_key(
    coord: Coord, session_on: OpenSession
) -> None:
    assert await coord.election.leader() is None
    term = await coord.election.campaign(await session_on(coord.etcd), node=ANNA)
    found = await coord.etcd.get(coord.keys.election)
    assert found is not None
    assert term == found.create_revision
    assert await coord.election.leader() == Leader(ANNA, term)


async def test_a_dead_masters_successor_has_a_higher_term_and_its_own_writes_are_refused(
    coord: Coord, session_on: OpenSession
) -> None:
    """R3, R4: every write of the former master is refused by etcd, whatever it believes."""
    first, second = await session_on(coord.etcd, ttl_s=60), await session_on(coord.etcd)
    old = await coord.election.campaign(first, node=ANNA)
    job = Job(id="j", spec=JobSpec(), state=JobState.PENDING, created_at="2026-01-01T00:00:00Z")
    stored = await coord.jobs.create(job)
    assert isinstance(stored, StoredJob)
    vanished = NodeInfo(id="w", role="worker", state="ready", pid=1, host="h", started_at="-")
    campaign = await waiting_candidate(coord, second, BERT)

    await revoked(coord, first)
    new = await asyncio.wait_for(campaign, 5)

    assert new > old
    assert first.is_live, "the former master does not know yet"
    with pytest.raises(NotMaster, match="bert"):
        await coord.jobs.replace(job, expected=stored.revision, term=old)
    with pytest.raises(NotMaster):
        await coord.assignments.publish({NodeId("w"): {JobId("j"): [0]}}, version=1, term=old)
    with pytest.raises(NotMaster):
        await coord.members.mark_departed(vanished, term=old)
    assert await coord.jobs.get("j") == stored
    assert await coord.assignments.load() == (0, {})
    assert await coord.members.list() == []
    assert isinstance(await coord.jobs.replace(job, expected=stored.revision, term=new), StoredJob)


async def test_a_resigned_term_lets_the_next_candidate_in(
    coord: Coord, session_on: OpenSession
) -> None:
    first, second = await session_on(coord.etcd), await session_on(coord.etcd)
    old = await coord.election.campaign(first, node=ANNA)
    campaign = await waiting_candidate(coord, second, BERT)
    await coord.election.resign(old)
    new = await asyncio.wait_for(campaign, 5)
    assert new > old
    await coord.election.resign(old)
    assert await coord.election.leader() == Leader(BERT, new), "a stale term resigns nothing"


async def test_a_candidate_whose_lease_is_revoked_while_it_waits_never_claims(
    coord: Coord, session_on: OpenSession
) -> None:
    """R11: no zombie candidate; waiting ends with the session."""
    first, second = await session_on(coord.etcd), await session_on(coord.etcd, ttl_s=2)
    term = await coord.election.campaign(first, node=ANNA)
    campaign = await waiting_candidate(coord, second, BERT)
    await revoked(coord, second)
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(campaign, 5)
    await coord.election.resign(term)
    assert await coord.election.leader() is None


async def test_a_victory_that_is_over_when_its_reply_arrives_is_not_claimed(
    etcd_server: EtcdServer, coord: Coord, connected: Connect, session_on: OpenSession
) -> None:
    """R11: what counts is whose key is there when the reply is read."""
    rival = await session_on(coord.etcd)
    async with TcpProxy(etcd_server.endpoint) as proxy:
        slow = await connected(proxy.endpoint)
        session = await session_on(slow.etcd)
        proxy.reply_delay_s = 0.5
        campaign = asyncio.create_task(slow.election.campaign(session, node=ANNA))
        won = await until(coord.election.leader)
        assert won is not None
        await coord.election.resign(won.term)
        theirs = await put_by_hand(coord, rival)
        proxy.reply_delay_s = 0.0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(campaign), 1.0)
        await coord.election.resign(theirs)
        assert await asyncio.wait_for(campaign, 5) > theirs
        await session.close()


async def test_a_victory_counts_only_while_its_session_lives(
    coord: Coord, session_on: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R11: the key may still be there when the session's own time is over."""
    session = await session_on(coord.etcd)
    read = coord.etcd.get

    async def read_late(key: str) -> KeyValue | None:
        found = await read(key)
        session._lose("its time is over")
        return found

    monkeypatch.setattr(coord.etcd, "get", read_late)
    with pytest.raises(LeaseLost):
        await coord.election.campaign(session, node=ANNA)


async def test_a_deleted_election_key_ends_the_term(coord: Coord, session_on: OpenSession) -> None:
    """R3: the guard compares the create revision, so the same node's new key is no old term."""
    session = await session_on(coord.etcd)
    old = await coord.election.campaign(session, node=ANNA)
    await coord.locks.release("master", Token(old))
    with pytest.raises(NotMaster, match="nobody"):
        await coord.assignments.publish({}, version=1, term=old)
    new = await coord.election.campaign(session, node=ANNA)
    assert new > old
    with pytest.raises(NotMaster, match="anna"):
        await coord.assignments.publish({}, version=1, term=old)


async def test_a_cancelled_candidate_that_waits_leaves_no_key(
    coord: Coord, session_on: OpenSession
) -> None:
    first, second = await session_on(coord.etcd), await session_on(coord.etcd)
    term = await coord.election.campaign(first, node=ANNA)
    campaign = await waiting_candidate(coord, second, BERT)
    campaign.cancel()
    with pytest.raises(asyncio.CancelledError):
        await campaign
    await coord.election.resign(term)
    assert await coord.election.leader() is None
    assert second.is_live


async def test_a_candidate_waits_through_a_restart_of_etcd(
    own_etcd: EtcdServer, connected: Connect, session_on: OpenSession
) -> None:
    coord = await connected(own_etcd.endpoint)
    first, second = await session_on(coord.etcd), await session_on(coord.etcd)
    term = await coord.election.campaign(first, node=ANNA)
    campaign = await waiting_candidate(coord, second, BERT)
    own_etcd.kill()
    own_etcd.restart()
    await coord.election.resign(term)
    assert await asyncio.wait_for(campaign, 8) > term


async def test_of_many_candidates_one_after_the_other_is_master(
    coord: Coord, session_on: OpenSession
) -> None:
    """R2: terms are unique and grow, whoever wins."""
    sessions = [await session_on(coord.etcd) for _ in range(5)]
    reigns: list[Term] = []
    reigning = 0

    async def run(number: int) -> None:
        nonlocal reigning
        term = await coord.election.campaign(sessions[number], node=NodeId(f"n{number}"))
        reigning += 1
        assert reigning == 1
        reigns.append(term)
        assert await coord.election.leader() == Leader(NodeId(f"n{number}"), term)
        reigning -= 1
        await coord.election.resign(term)

    await asyncio.wait_for(asyncio.gather(*(run(number) for number in range(5))), 10)
    assert reigns == sorted(set(reigns))
    await until_true(lambda: len(reigns) == 5)
