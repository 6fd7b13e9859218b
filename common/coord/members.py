"""The nodes of a cluster: who is there, in which state, and who left within the last hour.

A node's key hangs on its session, so a node that died is gone when its lease ends. A node that
leaves, or is found gone by the master, stays listed as departed under a lease of an hour of its
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from common.coord.client import Etcd
from common.coord.codec import decoded, encoded
from common.coord.election import Reign, check_term
from common.coord.keys import Keys
from common.coord.leases import ttls_s
from common.coord.session import Session
from common.coord.settle import settled
from common.coord.wire import (
    Delete,
    Get,
    KeyValue,
    Put,
    absent,
    created_at,
    leased_by,
    modified_at,
)
from common.model.errors import LeaseLost, RefusedError
from common.model.ids import Term, in_order
from common.model.node import NodeInfo, NodeState
from common.runtime.clock import utc_now

DEPARTED_FOR_S: Final = 3600
"""How long a node that left stays listed."""


class Departed(msgspec.Struct, frozen=True, kw_only=True):
    """A node that left."""

    info: NodeInfo
    left_at: str
    """RFC 3339, by the clock of whoever noticed."""


class NodeView(NamedTuple):
    """A node as the listing shows it."""

    info: NodeInfo
    term: int | None
    """The acting master's."""
    ttl_seconds: float | None
    """What its lease has left; of a departed node, how long it stays listed."""
    left_at: str | None


class Members:
    """The nodes of one cluster."""

    def __init__(self, etcd: Etcd, keys: Keys) -> None:
        self._etcd = etcd
        self._keys = keys

    async def join(self, session: Session, info: NodeInfo) -> None:
        """Register this node under its session.

        A key that this very process left under a former session is taken over.

        Raises:
            RefusedError: another live node has this id.
            LeaseLost: the session ended.
            CoordUnavailable: etcd does not answer; not registered.
            UnknownOutcome: maybe registered; join again, or close the session.
        """
        key = self._keys.node(info.id)
        put: list[Put | Delete] = [
            Put(key, encoded(info), session.lease),
            Delete(self._keys.departed(info.id)),
        ]
        guard = absent(key)
        while True:
            done = await settled(session, compare=[guard], success=put, failure=[Get(key)])
            found = done.reply.one(0) if not done.reply.succeeded else None
            if done.reply.succeeded or (found is not None and found.lease == session.lease):
                return
            if found is None:
                guard = absent(key)
                continue
            other = decoded(found, NodeInfo)
            if not other.is_same_process(info):
                raise RefusedError(
                    f"--id: node {info.id} is alive on {other.host} (pid {other.pid}); stop it, "
                    "wait until its lease ends if it crashed, or choose another id"
                )
            guard = modified_at(key, found.mod_revision)

    async def update(self, session: Session, info: NodeInfo) -> None:
        """Replace what is known of this node.

        Raises:
            LeaseLost: the node's key is gone or not under this session any more.
            CoordUnavailable: etcd does not answer; not replaced.
            UnknownOutcome: maybe replaced; the next update tells.
        """
        key = self._keys.node(info.id)
        reply = await session.txn(
            compare=[leased_by(key, session.lease)],
            success=[Put(key, encoded(info), session.lease)],
        )
        if not reply.succeeded:
            raise LeaseLost(f"node {info.id} is not registered under its session any more")

    async def leave(self, session: Session, info: NodeInfo) -> None:
        """Unregister this node and list it as departed; without effect if it is gone already.

        Raises:
            CoordUnavailable: etcd does not answer; closing the session unregisters too.
            UnknownOutcome: maybe unregistered, maybe later. Repeating is harmless.
        """
        key = self._keys.node(info.id)
        granted = await self._etcd.grant(DEPARTED_FOR_S)
        done = await settled(
            self._etcd,
            compare=[leased_by(key, session.lease)],
            success=[Delete(key), self._departed(info, lease=granted.lease)],
            failure=(),
        )
        if not done.reply.succeeded and not done.is_repeated:
            await self._etcd.revoke(granted.lease)

    async def mark_departed(self, info: NodeInfo, *, term: Term) -> None:
        """List a node that vanished as departed; without effect if it is back or listed.

        Raises:
            NotMaster: the term is over; nothing was written.
            CoordUnavailable: etcd does not answer; not written.
            UnknownOutcome: maybe written, maybe later. Repeating is harmless.
        """
        granted = await self._etcd.grant(DEPARTED_FOR_S)
        done = await settled(
            self._etcd,
            compare=[
                created_at(self._keys.election, term),
                absent(self._keys.node(info.id)),
                absent(self._keys.departed(info.id)),
            ],
            success=[self._departed(info, lease=granted.lease)],
            failure=[Get(self._keys.election)],
        )
        if not done.reply.succeeded and not done.is_repeated:
            await self._etcd.revoke(granted.lease)
            check_term(done.reply.one(0), term)

    async def live(self) -> list[NodeInfo]:
        """Return what the nodes that have not left say of themselves, in the order of `list`."""
        return [view.info for view in await self.list() if view.left_at is None]

    async def list(self) -> list[NodeView]:
        """Return every node, those that left within the last hour included.

        In order of their ids, numbers in them as numbers.
        """
        reply = await self._etcd.txn(
            compare=(),
            success=[
                Get(self._keys.nodes, is_prefix=True),
                Get(self._keys.departed_nodes, is_prefix=True),
                Get(self._keys.election),
            ],
        )
        live, departed, election = reply.reads
        ttls = await ttls_s(self._etcd, {kv.lease for kv in (*live, *departed)})
        views = {kv.key.rpartition("/")[2]: _departed_view(kv, ttls) for kv in departed}
        for kv in live:
            views[kv.key.rpartition("/")[2]] = _live_view(kv, ttls, election)
        return [views[node] for node in sorted(views, key=in_order)]

    def _departed(self, info: NodeInfo, *, lease: int) -> Put:
        value = Departed(
            info=msgspec.structs.replace(info, state=NodeState.OFFLINE, tasks=0), left_at=utc_now()
        )
        return Put(self._keys.departed(info.id), encoded(value), lease)


def _departed_view(kv: KeyValue, ttls: Mapping[int, float | None]) -> NodeView:
    departed = decoded(kv, Departed)
    return NodeView(departed.info, None, ttls.get(kv.lease), departed.left_at)


def _live_view(
    kv: KeyValue, ttls: Mapping[int, float | None], election: tuple[KeyValue, ...]
) -> NodeView:
    info = decoded(kv, NodeInfo)
    term = None
    if info.role == "master":
        if election and decoded(election[0], Reign).node == info.id:
            term = election[0].create_revision
        if info.state not in (NodeState.DEGRADED, NodeState.DRAINING):
            # The election knows better than the node's last word.
            state = NodeState.STANDBY if term is None else NodeState.ACTIVE
            info = msgspec.structs.replace(info, state=state)
    return NodeView(info, term, ttls.get(kv.lease), None)
