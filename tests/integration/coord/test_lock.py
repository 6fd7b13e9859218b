"""Locks against a real etcd: one owner, growing tokens, nothing by name alone."""

from __future__ import annotations

import asyncio

import pytest

from common.coord import Acquired, Coord, Held, Locks, Session
from common.coord.wire import Put
from common.model.errors import LeaseLost, UsageError
from common.model.ids import JobId, NodeId, Task, Token
from tests.integration.coord.conftest import OpenSession

ANNA, BERT = NodeId("anna"), NodeId("bert")


async def taken(coord: Coord, session: Session, name: str, *, owner: NodeId) -> Token:
    answer = await coord.locks.acquire(session, name, owner=owner)
    assert isinstance(answer, Acquired), answer
    return answer.token


async def test_of_twenty_contenders_one_gets_the_lock(
    coord: Coord, session_on: OpenSession
) -> None:
    sessions = await asyncio.gather(*(session_on(coord.etcd) for _ in range(20)))
    answers = await asyncio.gather(
        *(
            coord.locks.acquire(session, "seeds", owner=NodeId(f"n{number}"))
            for number, session in enumerate(sessions)
        )
    )
    winners = [answer for answer in answers if isinstance(answer, Acquired)]
    losers = [answer for answer in answers if isinstance(answer, Held)]
    assert len(winners) == 1
    assert len(losers) == 19
    assert {loser.token for loser in losers} == {winners[0].token}
    found = await coord.etcd.get(coord.keys.lock("seeds"))
    assert found is not None
    assert found.create_revision == winners[0].token


async def test_tokens_grow_with_every_acquisition(coord: Coord, session_on: OpenSession) -> None:
    """R2: the token is the create revision, never the lease or anything that repeats."""
    sessions = [await session_on(coord.etcd), await session_on(coord.etcd)]
    tokens = []
    for turn in range(8):
        token = await taken(coord, sessions[turn % 2], "seeds", owner=ANNA)
        tokens.append(token)
        assert await coord.locks.release("seeds", token)
    assert tokens == sorted(set(tokens))


async def test_a_stale_token_releases_nothing(coord: Coord, session_on: OpenSession) -> None:
    """R3: the same owner's name is not enough; the token must be the present one."""
    session = await session_on(coord.etcd)
    old = await taken(coord, session, "seeds", owner=ANNA)
    assert await coord.locks.release("seeds", old)
    new = await taken(coord, session, "seeds", owner=ANNA)

    assert not await coord.locks.release("seeds", old)
    assert await coord.locks.is_held("seeds", new)
    assert not await coord.locks.is_held("seeds", old)


async def test_an_owners_write_is_refused_once_its_token_is_over(
    coord: Coord, session_on: OpenSession
) -> None:
    """R3: the guard makes etcd itself refuse a former owner."""
    session = await session_on(coord.etcd)
    token = await taken(coord, session, "seeds", owner=ANNA)
    key = f"{coord.keys.root}guarded"
    guard = coord.locks.guard("seeds", token)
    assert (await coord.etcd.txn(compare=[guard], success=[Put(key, b"1")])).succeeded
    await coord.locks.release("seeds", token)
    await taken(coord, session, "seeds", owner=ANNA)
    assert not (await coord.etcd.txn(compare=[guard], success=[Put(key, b"2")])).succeeded
    found = await coord.etcd.get(key)
    assert found is not None
    assert found.value == b"1"


async def test_a_lock_is_free_once_its_owners_session_ends(
    coord: Coord, session_on: OpenSession
) -> None:
    first, second = await session_on(coord.etcd), await session_on(coord.etcd)
    old = await taken(coord, first, "seeds", owner=ANNA)
    assert await coord.locks.acquire(second, "seeds", owner=BERT) == Held("anna", old)
    await first.close()
    assert await taken(coord, second, "seeds", owner=BERT) > old


async def test_a_lost_session_takes_no_lock(coord: Coord, session_on: OpenSession) -> None:
    """R10: neither a session that knows it is lost nor one whose lease is gone unnoticed."""
    closed = await session_on(coord.etcd)
    await closed.close()
    unaware = await session_on(coord.etcd, ttl_s=60)
    await coord.etcd.revoke(unaware.lease)
    for session in (closed, unaware):
        with pytest.raises(LeaseLost):
            await coord.locks.acquire(session, "seeds", owner=ANNA)
    assert await coord.etcd.get(coord.keys.lock("seeds")) is None


async def test_asking_twice_under_one_session_shows_the_lock_as_held(
    coord: Coord, session_on: OpenSession
) -> None:
    session = await session_on(coord.etcd)
    token = await taken(coord, session, "seeds", owner=ANNA)
    assert await coord.locks.acquire(session, "seeds", owner=ANNA) == Held("anna", token)


async def test_many_tasks_are_taken_at_once_around_those_that_are_held(
    coord: Coord, session_on: OpenSession
) -> None:
    mine, other = await session_on(coord.etcd), await session_on(coord.etcd)
    tasks = [Task(JobId("j"), shard) for shard in range(70)]
    for shard in (3, 40):
        await taken(coord, other, Locks.task_name(tasks[shard]), owner=BERT)

    answers = await coord.locks.acquire_tasks(mine, tasks, owner=ANNA)

    assert list(answers) == tasks
    held = {task.shard for task, answer in answers.items() if isinstance(answer, Held)}
    assert held == {3, 40}
    tokens = {answer.token for answer in answers.values() if isinstance(answer, Acquired)}
    assert len(tokens) == 3, "three transactions took what was free"
    for task, answer in answers.items():
        found = await coord.etcd.get(coord.keys.lock(Locks.task_name(task)))
        assert found is not None
        assert found.create_revision == answer.token


async def test_the_listing_shows_every_lock_and_the_election(
    coord: Coord, session_on: OpenSession
) -> None:
    session = await session_on(coord.etcd, ttl_s=30)
    term = await coord.election.campaign(session, node=BERT)
    task = Locks.task_name(Task(JobId("j"), 7))
    tokens = {name: await taken(coord, session, name, owner=ANNA) for name in ("seeds", task)}

    found = {one.name: one for one in await coord.locks.list()}

    assert {name: (one.kind, one.owner, one.token) for name, one in found.items()} == {
        "master": ("master", "bert", term),
        "seeds": ("other", "anna", tokens["seeds"]),
        "tasks/j/7": ("task", "anna", tokens[task]),
    }
    for one in found.values():
        assert 0 <= one.age_seconds < 10
        assert one.ttl_seconds is not None
        assert 20 < one.ttl_seconds <= 30


async def test_locks_are_listed_in_order_of_the_numbers_in_their_names(
    coord: Coord, session_on: OpenSession
) -> None:
    session = await session_on(coord.etcd)
    names = [Locks.task_name(Task(JobId("j"), shard)) for shard in (0, 1, 2, 10, 11)]
    for name in reversed(names):
        await taken(coord, session, name, owner=ANNA)
    assert names == [one.name for one in await coord.locks.list()]


async def test_the_election_is_released_by_its_term_but_not_taken_as_a_lock(
    coord: Coord, session_on: OpenSession
) -> None:
    session = await session_on(coord.etcd)
    term = await coord.election.campaign(session, node=ANNA)
    with pytest.raises(UsageError, match="master"):
        await coord.locks.acquire(session, "master", owner=ANNA)
    assert not await coord.locks.release("master", Token(term - 1))
    assert await coord.locks.release("master", Token(term))
    assert await coord.election.leader() is None
