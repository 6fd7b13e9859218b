"""A process's lease in etcd, kept alive by a heartbeat; everything the process owns hangs on it.

A session is live until its own deadline: the moment the last acknowledged renewal was *sent*, plus
the time to live etcd granted, minus a margin. etcd lets the lease end later than that, so whoever
acts only while the session is live has stopped before anybody else can take over. The margin is
the time to stop in.

Once lost, by that deadline or by etcd's word, a session is dead for ever: a successor needs a new
lease, and every lock under the old one must be taken as lost. A renewal that fails is no loss by
itself; it is tried again, on another member, until the deadline.

Not promised: that nothing happens after the deadline in a process that was stopped between a look
at the session and the act. Fencing tokens are for that; the session only keeps it rare.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from common.coord.client import Etcd
from common.coord.jitter import between_s
from common.coord.log import logger
from common.coord.transport import ATTEMPT_TIMEOUT_S
from common.coord.wire import Compare, Operation, TxnReply
from common.model.errors import CoordUnavailable, CrawlerError, LeaseLost, UsageError

SHORTEST_TTL_S: Final = 2.0
"""etcd makes shorter leases longer, and a busy machine would lose them for nothing."""
MARGIN_RATIO: Final = 0.35
"""Part of the time to live kept for stopping; renewals may fail for about as long again."""

# One renewal that hangs must leave time for another one on another member before the deadline:
# 0.3 + 0.2 of the time to live are gone then, of 0.65.
_BEAT_RATIO: Final = 0.3
_RENEWAL_RATIO: Final = 0.2
_CALL_RATIO: Final = 0.25
_SHORTEST_RETRY_S: Final = 0.05
_LONGEST_RETRY_S: Final = 0.5
_CLOSED: Final = "the session was closed"

# The plain monotonic clock of Linux stands still while the machine is suspended; leases do not.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Session:
    """A lease with its heartbeat; make one with :meth:`open`."""

    def __init__(self, etcd: Etcd, *, lease: int, ttl_s: float, sent_at_s: float) -> None:
        self.lease = lease
        self.ttl_s = ttl_s
        """As etcd granted it."""
        self.incarnation = uuid.uuid4().hex[:12]
        """Names this session in values it writes; no two sessions share one."""
        self.door = 0
        """Revision of the session's door (:mod:`common.coord.door`)."""
        self._etcd = etcd
        self._deadline_s = sent_at_s + ttl_s * (1 - MARGIN_RATIO)
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._is_revoked = False
        self._chores: set[asyncio.Task[None]] = set()
        self._heartbeat = asyncio.create_task(self._beat(), name=f"heartbeat {lease:x}")
        self._heartbeat.add_done_callback(self._beat_ended)

    @classmethod
    async def open(cls, etcd: Etcd, *, ttl_s: float) -> Session:
        """Grant a lease and begin to keep it alive.

        Args:
            etcd: an open client; close the session before it.
            ttl_s: seconds until others may take over from a process that stopped, at least 2.

        Raises:
            CoordUnavailable: etcd does not answer.
            UsageError: the time to live is too short.
        """
        if ttl_s < SHORTEST_TTL_S:
            raise UsageError(f"--lease-ttl: {ttl_s:g} is too short; give at least 2 seconds")
        sent_at_s = _now_s()
        granted = await etcd.grant(math.ceil(ttl_s))
        session = cls(etcd, lease=granted.lease, ttl_s=float(granted.ttl_s), sent_at_s=sent_at_s)
        logger().info("session.opened", lease=f"{session.lease:x}", ttl_s=session.ttl_s)
        return session

    def remaining_s(self) -> float:
        """Return the seconds until the session's own deadline; 0 once it is lost."""
        return 0.0 if self._lost.done() else max(0.0, self._deadline_s - _now_s())

    @property
    def overdue_s(self) -> float:
        """By how much the last renewal is later than it should be: etcd is slow or away."""
        return max(0.0, self.ttl_s * (1 - MARGIN_RATIO - _BEAT_RATIO) - self.remaining_s())

    @property
    def is_live(self) -> bool:
        """Whether what the session owns may be acted on right now."""
        if not self._lost.done() and self.remaining_s() <= 0:
            # The heartbeat was kept from running, so it is for whoever asks first to notice.
            self._lose("the process was stopped or too busy to renew the lease in time")
        return not self._lost.done()

    @property
    def lost_reason(self) -> str | None:
        """Why the session is lost; None while it is live."""
        return None if self.is_live else self._lost.result()

    async def wait_lost(self) -> str:
        """Return the reason once the session is lost (or closed)."""
        return await asyncio.shield(self._lost)

    def check(self) -> None:
        """Return if the session is live.

        Raises:
            LeaseLost: it is not; stop what it protected.
        """
        if not self.is_live:
            raise LeaseLost(f"the session is lost: {self._lost.result()}")

    async def txn(
        self,
        *,
        compare: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
    ) -> TxnReply:
        """Carry out a transaction while the session is live; see :meth:`Etcd.txn`.

        Raises:
            LeaseLost: the session is lost; nothing was applied by this call.
        """
        self.check()
        try:
            return await self._etcd.txn(
                compare=compare,
                success=success,
                failure=failure,
                timeout_s=self.remaining_s(),
                attempt_timeout_s=min(ATTEMPT_TIMEOUT_S, self.ttl_s * _CALL_RATIO),
            )
        except LeaseLost as error:
            self._lose(str(error))
            raise

    def finish(self, chore: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a chore to its end though nobody waits for it, at most as long as the session."""
        task = asyncio.create_task(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
        return task

    async def close(self) -> None:
        """Stop the heartbeat and revoke the lease, which deletes its keys; idempotent.

        Whatever the session protects must have ended before. If etcd does not answer, the lease
        ends by itself.
        """
        self._lose(_CLOSED)
        background = [self._heartbeat, *self._chores]
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        if self._is_revoked:
            return
        self._is_revoked = True
        try:
            await self._etcd.revoke(self.lease, timeout_s=ATTEMPT_TIMEOUT_S)
        except CoordUnavailable as error:
            logger().warning("session.not_revoked", lease=f"{self.lease:x}", error=str(error))

    async def _beat(self) -> None:
        wait_s = self.ttl_s * _BEAT_RATIO
        trouble = "the process was too busy to renew the lease in time"
        while self.remaining_s() > 0:
            await asyncio.sleep(min(wait_s, self.remaining_s()))
            limit_s = min(ATTEMPT_TIMEOUT_S, self.ttl_s * _RENEWAL_RATIO, self.remaining_s())
            if limit_s <= 0:
                break
            sent_at_s = _now_s()
            try:
                ttl_s = await self._etcd.keep_alive(self.lease, timeout_s=limit_s)
            except CoordUnavailable as error:
                trouble = f"the lease could not be renewed in time ({error})"
                wait_s = between_s(_SHORTEST_RETRY_S, min(_LONGEST_RETRY_S, self.ttl_s / 10))
                continue
            except CrawlerError as error:
                self._lose(f"the lease cannot be renewed: {error}")
                return
            if ttl_s <= 0:
                self._lose("etcd does not know the lease any more: it expired or was revoked")
                return
            self._deadline_s = sent_at_s + ttl_s * (1 - MARGIN_RATIO)
            wait_s = ttl_s * _BEAT_RATIO
        self._lose(trouble)

    def _beat_ended(self, heartbeat: asyncio.Task[None]) -> None:
        # Without a heartbeat there is no session, whatever ended it.
        if not heartbeat.cancelled() and (error := heartbeat.exception()) is not None:
            self._lose(f"the heartbeat failed: {error!r}")
        else:
            self._lose("the heartbeat ended")

    def _lose(self, reason: str) -> None:
        if self._lost.done():
            return
        self._lost.set_result(reason)
        if reason == _CLOSED:
            logger().info("session.closed", lease=f"{self.lease:x}")
        else:
            logger().warning("session.lost", lease=f"{self.lease:x}", reason=reason)


def _now_s() -> float:
    return time.clock_gettime(_CLOCK)
