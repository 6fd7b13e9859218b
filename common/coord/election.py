"""Election of the master: compare-and-swap on one key, whose create revision is the term.

Every write of a master carries the guard that the election key still has its term, so a master
that was replaced is refused by etcd whatever it believes.

Not promised: that two processes never both believe to be master for a moment. Only one of them can
write, and the newer term wins where writes carry it.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import NamedTuple

import msgspec

from common.coord.client import Etcd
from common.coord.codec import decoded, encoded
from common.coord.door import Door, undone_if_cancelled
from common.coord.jitter import pause
from common.coord.keys import Keys
from common.coord.log import logger
from common.coord.session import Session
from common.coord.settle import settled
from common.coord.watch import Compacted
from common.coord.wire import Compare, Delete, Get, KeyValue, Put, absent, created_at
from common.model.errors import CoordUnavailable, NotMaster, UnknownOutcome
from common.model.ids import NodeId, Term
from common.runtime.clock import utc_now


class Reign(msgspec.Struct, frozen=True, kw_only=True):
    """What the election key holds."""

    node: str
    nonce: str
    acquired_at: str
    """RFC 3339, by the master's clock; for people only."""


class Leader(NamedTuple):
    """The master right now."""

    node: NodeId
    term: Term


class _Taken(NamedTuple):
    revision: int
    """Revision at which somebody else was seen to be master."""


def check_term(election: KeyValue | None, term: Term) -> None:
    """Return if the election key, as it was read, still has this term.

    Raises:
        NotMaster: it does not; the master of this term must step down.
    """
    if election is None:
        raise NotMaster(f"term {term} is over and nobody is master")
    if election.create_revision != term:
        node = decoded(election, Reign).node
        raise NotMaster(f"term {term} is over: {node} is master of term {election.create_revision}")


class Election:
    """The election of one cluster's master."""

    def __init__(self, etcd: Etcd, keys: Keys) -> None:
        self._etcd = etcd
        self._key = keys.election
        self._door = Door(keys)

    async def campaign(self, session: Session, *, node: NodeId) -> Term:
        """Wait until this node is master; return the term.

        Goes on through failures of etcd for as long as the session is live. When cancelled it
        leaves no key behind.

        Raises:
            LeaseLost: the session ended; campaign again with a new one.
        """
        value = Reign(
            node=node, nonce=f"{session.incarnation}-{uuid.uuid4().hex}", acquired_at=utc_now()
        )
        put = Put(self._key, encoded(value), session.lease)
        while True:
            answer = await undone_if_cancelled(session, self._claim(session, put), self._withdraw)
            if not isinstance(answer, _Taken):
                logger().info("election.won", node=node, term=answer)
                return answer
            await self._wait_for_end(session, answer.revision)

    async def resign(self, term: Term) -> None:
        """End the term if it is not over yet; somebody else may be elected at once.

        Raises:
            CoordUnavailable: etcd does not answer; closing the session ends the term too.
            UnknownOutcome: maybe ended, maybe later. Repeating is harmless.
        """
        await settled(
            self._etcd, compare=[self.guard(term)], success=[Delete(self._key)], failure=()
        )

    async def leader(self) -> Leader | None:
        """Return who is master right now."""
        found = await self._etcd.get(self._key)
        if found is None:
            return None
        return Leader(NodeId(decoded(found, Reign).node), Term(found.create_revision))

    def guard(self, term: Term) -> Compare:
        """Return the guard for a transaction that only the master of this term may carry out."""
        return created_at(self._key, term)

    async def _claim(self, session: Session, put: Put) -> Term | _Taken:
        """Try to become master; return once the outcome is certain."""
        while True:
            try:
                reply = await session.txn(
                    compare=[absent(self._key), self._door.guard(session)],
                    success=[put],
                    failure=[Get(self._key), self._door.read(session)],
                )
                # Whatever the transaction said, what counts is what is there now: a reply may be
                # old when it is read, and a copy that got none may have been the one applied.
                found = await self._etcd.get(self._key)
            except UnknownOutcome:
                await self._door.close(session)
                continue
            except CoordUnavailable:
                await pause()
                continue
            if not reply.succeeded:
                self._door.note(session, reply.one(1))
            if found is None:
                continue
            if found.value != put.value:
                return _Taken(max(reply.revision, found.mod_revision))
            session.check()
            return Term(found.create_revision)

    async def _withdraw(self, answer: Term | _Taken) -> None:
        if not isinstance(answer, _Taken):
            await self.resign(answer)

    async def _wait_for_end(self, session: Session, revision: int) -> None:
        """Return when the key seen at ``revision`` is deleted, or when it is worth a look."""
        waiting = [
            asyncio.create_task(self._deletion_after(revision)),
            asyncio.create_task(session.wait_lost()),
        ]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        session.check()

    async def _deletion_after(self, revision: int) -> None:
        try:
            async with self._etcd.watch(Get(self._key), start_revision=revision + 1) as watch:
                while not any(event.is_delete for event in await watch.next()):
                    pass
        except (Compacted, CoordUnavailable):
            await pause()
