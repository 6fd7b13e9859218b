"""The client of etcd: reads, guarded writes and leases, each with a known outcome.

Invariants:

- Reads are linearizable and may be repeated. A write is repeated only while it surely was not
  applied; once that is not known it is reported as ``UnknownOutcome`` and never repeated here.
- gRPC's exceptions do not leave this package.

Not promised: the order of two calls that are under way at the same time, and that a write whose
outcome is unknown will not be applied later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import grpc

from common.coord import failures
from common.coord.member import EtcdOptions, Member
from common.coord.transport import ATTEMPT_TIMEOUT_S, CALL_TIMEOUT_S, Transport
from common.coord.watch import Watch
from common.coord.wire import (
    Compare,
    Get,
    KeyValue,
    Operation,
    Snapshot,
    TxnReply,
    from_kv,
    messages,
    range_request,
    txn_reply,
    txn_request,
)
from common.model.errors import CoordUnavailable, LeaseLost, RefusedError
from common.runtime.settings import OPEN_TIMEOUT_S

__all__ = [
    "EndpointStatus",
    "Etcd",
    "EtcdOptions",
    "KeyValue",
    "LeaseGrant",
    "Snapshot",
    "TxnReply",
]

_PROBE_KEY = "/crawlctl/"


class EndpointStatus(NamedTuple):
    """What one member says of itself; ``error`` is set, and the rest empty, if it says nothing."""

    endpoint: str
    version: str = ""
    is_leader: bool = False
    raft_term: int = 0
    db_size: int = 0
    """Bytes."""
    warnings: tuple[str, ...] = ()
    """Its own complaints: alarms (out of space), no leader."""
    error: str | None = None


class LeaseGrant(NamedTuple):
    """A new lease and the time to live etcd gave it, which may be more than was asked for."""

    lease: int
    ttl_s: int


class Etcd:
    """A client of one etcd cluster; belongs to the event loop it was opened in."""

    def __init__(self, options: EtcdOptions) -> None:
        self._options = options
        self._transport = Transport(options)

    @property
    def endpoints(self) -> str:
        """The endpoints, for messages."""
        return ", ".join(self._options.endpoints)

    async def open(
        self, *, timeout_s: float = OPEN_TIMEOUT_S, up: str = "crawlctl up --data DIR"
    ) -> None:
        """Connect, authenticate and read once, so that later failures are not wrong settings.

        Args:
            timeout_s: for all members together.
            up: the command that would start servers where there are none.

        Raises:
            CoordUnavailable: no member answered within ``timeout_s``; names the endpoints.
            SettingsError: a certificate file, the user or the password is wrong.
        """
        self._transport.open()
        try:
            await self._read(Get(_PROBE_KEY), timeout_s=timeout_s)
        except RefusedError:
            return  # Reached and known, but the user may read less than this key.
        except CoordUnavailable as error:
            await self.close()
            raise CoordUnavailable(
                f"etcd at {self.endpoints} cannot be reached within {timeout_s:g} s "
                f"({str(error).removeprefix(f'etcd at {self.endpoints}: ')}); start it, name "
                f"another with --etcd HOST:PORT, or start private servers with '{up}'"
            ) from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close every connection; idempotent. Calls still under way end as unavailable."""
        await self._transport.close()

    async def get(self, key: str) -> KeyValue | None:
        """Read a key as it is now.

        Raises:
            CoordUnavailable: no member answered; ask again.
        """
        response = await self._read(Get(key))
        return from_kv(response.kvs[0]) if response.kvs else None

    async def get_prefix(self, prefix: str) -> Snapshot:
        """Read every key that begins with ``prefix`` as they are now, at one revision.

        Raises:
            CoordUnavailable: no member answered; ask again.
        """
        response = await self._read(Get(prefix, is_prefix=True))
        items = {kv.key: kv for kv in map(from_kv, response.kvs)}
        return Snapshot(response.header.revision, items)

    async def txn(
        self,
        *,
        compare: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
        timeout_s: float = CALL_TIMEOUT_S,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
    ) -> TxnReply:
        """Carry out ``success`` if every guard holds, else ``failure``; all or nothing.

        Args:
            compare: the guards.
            success: operations if they hold; no key twice, at most 128.
            failure: operations if one does not hold, usually reads that tell which.
            timeout_s: over all members, while it surely was not applied.
            attempt_timeout_s: for one member.

        Raises:
            CoordUnavailable: surely not applied; safe to repeat.
            UnknownOutcome: maybe applied, maybe later; re-read before anything else.
            LeaseLost: a key was to be put under a lease that is gone; not applied.
        """
        request = txn_request(compare, success, failure)
        response = await self._transport.call(
            lambda member, options: member.kv.Txn(request, **options),
            is_write=not all(isinstance(one, Get) for one in (*success, *failure)),
            timeout_s=timeout_s,
            attempt_timeout_s=attempt_timeout_s,
        )
        return txn_reply(response)

    def watch(self, target: Get, *, start_revision: int) -> Watch:
        """Watch a key or prefix from a revision on; open it with ``async with``."""
        return Watch(self._transport, target, start_revision=start_revision)

    async def status(self) -> list[EndpointStatus]:
        """Ask every endpoint about itself, reachable or not; in the order they were given."""
        found = await asyncio.gather(*map(_status_of, self._transport.members))
        return sorted(found, key=lambda one: self._options.endpoints.index(one.endpoint))

    async def grant(self, ttl_s: int) -> LeaseGrant:
        """Make a lease that ends by itself after ``ttl_s`` unless it is kept alive.

        Raises:
            CoordUnavailable: no member answered. A lease made unseen holds nothing and expires.
        """
        request = messages.LeaseGrantRequest(TTL=ttl_s)
        response = await self._transport.call(
            lambda member, options: member.lease.LeaseGrant(request, **options)
        )
        return LeaseGrant(response.ID, response.TTL)

    async def keep_alive(self, lease: int, *, timeout_s: float) -> int:
        """Renew a lease, in one attempt; return its seconds to live, 0 if it is gone.

        Each renewal has a stream of its own: an answer can belong to no other request, and the
        next attempt can go to another member.

        Raises:
            CoordUnavailable: no answer; the lease may or may not have been renewed.
        """
        request = messages.LeaseKeepAliveRequest(ID=lease)

        async def renew(member: Member, options: dict[str, Any]) -> Any:
            call = member.lease.LeaseKeepAlive(iter([request]), **options)
            try:
                response = await call.read()
            finally:
                call.cancel()
            if response is grpc.aio.EOF:
                raise CoordUnavailable(f"etcd at {member.endpoint}: the stream ended")
            return response

        response = await self._transport.attempt(renew, timeout_s=timeout_s)
        return max(int(response.TTL), 0)

    async def revoke(self, lease: int, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """End a lease and delete its keys; a lease that is gone is fine. Safe to repeat.

        Raises:
            CoordUnavailable: no member answered; the lease ends by itself then.
        """
        request = messages.LeaseRevokeRequest(ID=lease)
        try:
            await self._transport.call(
                lambda member, options: member.lease.LeaseRevoke(request, **options),
                timeout_s=timeout_s,
            )
        except LeaseLost:
            return

    async def lease_ttl_s(self, lease: int) -> int | None:
        """Return the seconds a lease has left, or None if it is gone."""
        request = messages.LeaseTimeToLiveRequest(ID=lease)
        response = await self._transport.call(
            lambda member, options: member.lease.LeaseTimeToLive(request, **options)
        )
        return int(response.TTL) if response.TTL >= 0 else None

    async def leases(self) -> list[int]:
        """Return every lease of the cluster, whoever made it."""
        request = messages.LeaseLeasesRequest()
        response = await self._transport.call(
            lambda member, options: member.lease.LeaseLeases(request, **options)
        )
        return [one.ID for one in response.leases]

    async def _read(self, target: Get, *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        request = range_request(target)
        return await self._transport.call(
            lambda member, options: member.kv.Range(request, **options), timeout_s=timeout_s
        )


async def _status_of(member: Member) -> EndpointStatus:
    try:
        await member.connect(timeout_s=ATTEMPT_TIMEOUT_S)
        answer = await member.status(timeout_s=ATTEMPT_TIMEOUT_S)
    except CoordUnavailable as error:
        return EndpointStatus(member.endpoint, error=str(error))
    except messages.AioRpcError as error:
        return EndpointStatus(member.endpoint, error=failures.reason(error))
    return EndpointStatus(
        endpoint=member.endpoint,
        version=answer.version,
        is_leader=answer.leader == answer.header.member_id,
        raft_term=answer.raftTerm,
        db_size=answer.dbSize,
        warnings=tuple(answer.errors),
    )
