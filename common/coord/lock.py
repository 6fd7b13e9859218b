"""Locks: one owner at a time, each acquisition with a fencing token of its own.

A lock is a key under its owner's lease, made by compare-and-swap on its absence; its create
revision is the token and grows with every acquisition. Checking and releasing go by the token,
never by the owner's name. A write without an answer is never taken for a verdict: the door is
closed behind it (:mod:`common.coord.door`) and the lock read again, and whose lock it is shows in
the nonce of its value.

Not promised: that the owner still is the owner when it acts. The lease may have ended a moment
before; the token lets the data refuse what comes too late.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from common.coord.client import Etcd
from common.coord.codec import decoded, encoded
from common.coord.door import Door, undone_if_cancelled
from common.coord.election import Reign
from common.coord.jitter import pause
from common.coord.keys import Keys
from common.coord.leases import ttls_s
from common.coord.session import Session
from common.coord.settle import settled
from common.coord.wire import Compare, Delete, Get, KeyValue, Put, TxnReply, absent, created_at
from common.model.errors import CoordUnavailable, UnknownOutcome, UsageError
from common.model.ids import NodeId, Task, Token, in_order
from common.runtime.clock import seconds_between, utc_now

MASTER: Final = "master"
"""The name under which the election appears among the locks."""
LOCKS_PER_TXN: Final = 32

_TASKS: Final = "tasks/"


class Acquired(NamedTuple):
    """The lock is ours, under this fencing token."""

    token: Token


class Held(NamedTuple):
    """The lock is somebody's; our own when asked for twice under one session."""

    owner: str
    token: Token


class LockValue(msgspec.Struct, frozen=True, kw_only=True):
    """What the key of a lock holds."""

    owner: str
    nonce: str
    """Session and attempt: tells this acquisition from every other, whatever the owner's name."""
    acquired_at: str
    """RFC 3339, by the owner's clock; for people only."""


class LockInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A lock as the listing shows it."""

    name: str
    kind: Literal["master", "task", "other"]
    owner: str
    token: int
    age_seconds: float
    """By the owner's and the reader's clocks, so only about right."""
    ttl_seconds: int | None
    """What the owner's lease has left; None when it ends this moment."""


class Locks:
    """The locks of one cluster."""

    def __init__(self, etcd: Etcd, keys: Keys) -> None:
        self._etcd = etcd
        self._keys = keys
        self._door = Door(keys)

    @staticmethod
    def task_name(task: Task) -> str:
        """Return the name of a task's lock."""
        return f"{_TASKS}{task.job}/{task.shard}"

    async def acquire(self, session: Session, name: str, *, owner: NodeId) -> Acquired | Held:
        """Take a lock if it is free; never waits for it.

        When the caller is cancelled, what was taken meanwhile is given back first.

        Raises:
            CoordUnavailable: etcd does not answer; nothing was taken.
            LeaseLost: the session ended, before the outcome was known perhaps; nothing is ours.
        """
        return (await self._acquire_all(session, [name], owner=owner))[name]

    async def acquire_tasks(
        self, session: Session, tasks: Sequence[Task], *, owner: NodeId
    ) -> dict[Task, Acquired | Held]:
        """Take the locks of many tasks, up to 32 in one transaction.

        A task missing from the answer is undecided and was not taken, because etcd stopped
        answering halfway; ask again.

        Raises:
            CoordUnavailable: etcd does not answer; nothing was taken.
            LeaseLost: as for :meth:`acquire`.
        """
        names = {self.task_name(task): task for task in tasks}
        found = await self._acquire_all(session, list(names), owner=owner)
        return {task: found[name] for name, task in names.items() if name in found}

    async def release(self, name: str, token: Token) -> bool:
        """Free a lock if it is still held under this token.

        Returns:
            True if it was (a first try without an answer counts as having freed it), False if the
            token is stale; the lock, if anybody's, is then untouched.

        Raises:
            CoordUnavailable: etcd does not answer; not freed.
            UnknownOutcome: maybe freed, maybe later. Repeating is harmless.
        """
        key = self._key(name)
        done = await settled(
            self._etcd,
            compare=[created_at(key, token)],
            success=[Delete(key)],
            failure=[Get(key)],
        )
        return done.reply.succeeded or done.is_repeated

    async def is_held(self, name: str, token: Token) -> bool:
        """Tell whether the lock is held under this token right now."""
        found = await self._etcd.get(self._key(name))
        return found is not None and found.create_revision == token

    async def not_held(self, tokens: Mapping[str, Token]) -> set[str]:
        """Return which of up to ``LOCKS_PER_TXN`` locks are not held under their tokens right now.

        Args:
            tokens: of locks, by name.
        """
        reads = [Get(self._key(name)) for name in tokens]
        reply = await self._etcd.txn(compare=(), success=reads)
        found = {name: reply.one(index) for index, name in enumerate(tokens)}
        return {
            name for name, kv in found.items() if kv is None or kv.create_revision != tokens[name]
        }

    def guard(self, name: str, token: Token) -> Compare:
        """Return the guard for a transaction that only the owner may carry out."""
        return created_at(self._key(name), token)

    async def list(self) -> list[LockInfo]:
        """Return every lock, the election included.

        In order of their names, numbers in them as numbers.
        """
        reply = await self._etcd.txn(
            compare=(), success=[Get(self._keys.election), Get(self._keys.locks, is_prefix=True)]
        )
        election, locks = reply.reads
        ttls = await ttls_s(self._etcd, {kv.lease for kv in (*election, *locks)})
        now = utc_now()
        found = [self._info(kv, ttl_s=ttls.get(kv.lease), now=now) for kv in (*election, *locks)]
        return sorted(found, key=lambda one: in_order(one.name))

    def _info(self, kv: KeyValue, *, ttl_s: int | None, now: str) -> LockInfo:
        kind: Literal["master", "task", "other"]
        if kv.key == self._keys.election:
            reign = decoded(kv, Reign)
            name, kind, owner, since = MASTER, "master", reign.node, reign.acquired_at
        else:
            value = decoded(kv, LockValue)
            name, owner, since = kv.key[len(self._keys.locks) :], value.owner, value.acquired_at
            kind = "task" if name.startswith(_TASKS) else "other"
        return LockInfo(
            name=name,
            kind=kind,
            owner=owner,
            token=kv.create_revision,
            age_seconds=round(seconds_between(since, now), 3),
            ttl_seconds=ttl_s,
        )

    def _key(self, name: str) -> str:
        return self._keys.election if name == MASTER else self._keys.lock(name)

    async def _acquire_all(
        self, session: Session, names: Sequence[str], *, owner: NodeId
    ) -> dict[str, Acquired | Held]:
        if MASTER in names:
            raise UsageError(f"the lock {MASTER!r} is taken by election only; choose another name")
        return await undone_if_cancelled(
            session, self._acquire_in_chunks(session, names, owner=owner), self._give_back
        )

    async def _acquire_in_chunks(
        self, session: Session, names: Sequence[str], *, owner: NodeId
    ) -> dict[str, Acquired | Held]:
        found: dict[str, Acquired | Held] = {}
        for start in range(0, len(names), LOCKS_PER_TXN):
            chunk = names[start : start + LOCKS_PER_TXN]
            try:
                await self._acquire_chunk(session, chunk, owner=owner, found=found)
            except CoordUnavailable:
                if not found:
                    raise
                break
        session.check()
        return found

    async def _acquire_chunk(
        self,
        session: Session,
        names: Sequence[str],
        *,
        owner: NodeId,
        found: dict[str, Acquired | Held],
    ) -> None:
        puts = {name: self._put(session, name, owner=owner) for name in names}
        is_unsure = False
        # Each round decides at least one lock, or renews the guard of the door.
        while pending := [put for name, put in puts.items() if name not in found]:
            try:
                reply = await session.txn(
                    compare=[*(absent(put.key) for put in pending), self._door.guard(session)],
                    success=pending,
                    failure=[*(Get(put.key) for put in pending), self._door.read(session)],
                )
            except UnknownOutcome:
                # 1. Nothing sent so far may be applied from here on. 2. The next round reads what
                # is there: our nonce, if a copy was applied before.
                is_unsure = True
                await self._door.close(session)
                continue
            except CoordUnavailable:
                if not is_unsure:
                    raise
                await pause()
                continue
            is_unsure = False
            if not reply.succeeded:
                self._door.note(session, reply.one(-1))
            found.update(self._answers(reply, pending))

    def _answers(
        self, reply: TxnReply, pending: Sequence[Put]
    ) -> Iterable[tuple[str, Acquired | Held]]:
        for index, put in enumerate(pending):
            name = put.key[len(self._keys.locks) :]
            if reply.succeeded:
                yield name, Acquired(Token(reply.revision))
            elif (kv := reply.one(index)) is not None:
                token = Token(kv.create_revision)
                is_ours = kv.value == put.value
                yield (
                    name,
                    Acquired(token) if is_ours else Held(decoded(kv, LockValue).owner, token),
                )

    def _put(self, session: Session, name: str, *, owner: NodeId) -> Put:
        value = LockValue(
            owner=owner, nonce=f"{session.incarnation}-{uuid.uuid4().hex}", acquired_at=utc_now()
        )
        return Put(self._keys.lock(name), encoded(value), session.lease)

    async def _give_back(self, found: dict[str, Acquired | Held]) -> None:
        for name, answer in found.items():
            if isinstance(answer, Acquired):
                await self.release(name, answer.token)
