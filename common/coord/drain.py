"""Asking a node to drain from outside: a key beside the node's own, under the same lease.

The request lives as long as the node's session, so it never meets another process that takes the
same id later, and nothing is left to clean up. A node looks for it only after it has joined.

Not promised: that a request outlives the session it was made in. A node that lost its session
before it saw the request is back under a new one; ask again.
"""

from __future__ import annotations

from typing import Final

import msgspec

from common.coord.client import Etcd
from common.coord.codec import encoded
from common.coord.jitter import pause
from common.coord.keys import Keys
from common.coord.mirror import Mirror
from common.coord.settle import settled
from common.coord.wire import Get, Put, created_at
from common.model.errors import CoordUnavailable, NotFoundError
from common.model.ids import NodeId
from common.runtime.clock import utc_now

_WAIT_S: Final = 60.0


class DrainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the key holds."""

    asked_at: str
    """RFC 3339, by the asker's clock; for people only."""


class Drains:
    """Requests to drain of one cluster."""

    def __init__(self, etcd: Etcd, keys: Keys) -> None:
        self._etcd = etcd
        self._keys = keys

    async def ask(self, node: NodeId | str) -> None:
        """Ask a live node to drain; asking again is harmless.

        Raises:
            NotFoundError: there is no live node of this id.
            CoordUnavailable: etcd does not answer; not asked.
            UnknownOutcome: maybe asked. Repeating is harmless.
        """
        key = self._keys.node(node)
        while (found := await self._etcd.get(key)) is not None:
            put = Put(
                self._keys.drain(node), encoded(DrainRequest(asked_at=utc_now())), found.lease
            )
            done = await settled(
                self._etcd,
                compare=[created_at(key, found.create_revision)],
                success=[put],
                failure=[Get(key)],
            )
            if done.reply.succeeded:
                return
        raise NotFoundError(
            f"there is no live node {node!r}; 'crawlctl nodes' lists those there are"
        )

    async def wait(self, node: NodeId) -> None:
        """Return once this node is asked to drain; call it after the node has joined."""
        key = self._keys.drain(node)
        mirror = Mirror(self._etcd, key)
        while True:
            try:
                await mirror.start()
                break
            except CoordUnavailable:
                await pause()
        try:
            # The prefix also covers longer ids: whose key it is must be looked at.
            while key not in mirror.items:
                await mirror.changed(timeout_s=_WAIT_S)
        finally:
            await mirror.close()
