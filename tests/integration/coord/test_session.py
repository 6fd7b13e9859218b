"""Sessions against a real etcd that is revoked under them, paused, killed and restarted."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from common.coord import Coord, KeyValue, Session
from common.coord.session import MARGIN_RATIO
from common.coord.wire import Put, absent
from common.model.errors import LeaseLost, UsageError
from tests.integration.coord.conftest import Connect, OpenSession
from tests.support.servers import EtcdServer, start_etcd, stopping
from tests.support.tcpproxy import TcpProxy
from tests.support.waiting import until_true

LIVE_RATIO = 1 - MARGIN_RATIO


async def test_a_session_goes_on_beyond_its_time_to_live(
    coord: Coord, session_on: OpenSession
) -> None:
    session = await session_on(coord.etcd, ttl_s=2)
    ends_at = time.monotonic() + 1.5 * session.ttl_s
    await until_true(lambda: not session.is_live or time.monotonic() > ends_at)
    assert session.is_live
    assert session.lost_reason is None
    assert await coord.etcd.lease_ttl_s(session.lease) is not None


async def test_a_revoked_lease_ends_the_session_at_the_next_renewal(
    coord: Coord, session_on: OpenSession
) -> None:
    session = await session_on(coord.etcd, ttl_s=2)
    await coord.etcd.revoke(session.lease)
    assert "expired or was revoked" in await session.wait_lost()
    assert not session.is_live
    assert session.remaining_s() == 0


async def test_a_write_that_etcd_refuses_for_its_lease_ends_the_session_at_once(
    coord: Coord, session_on: OpenSession
) -> None:
    session = await session_on(coord.etcd, ttl_s=60)
    await coord.etcd.revoke(session.lease)
    with pytest.raises(LeaseLost):
        await session.txn(
            compare=(), success=[Put(f"{coord.keys.root}x", b"", session.lease)], failure=()
        )
    assert not session.is_live


async def test_a_silent_etcd_ends_the_session_before_its_lease_ends_there(
    own_etcd: EtcdServer, connected: Connect, session_on: OpenSession
) -> None:
    """R9: with etcd unreachable nothing is kept; the session stops first, on its own clock."""
    coord = await connected(own_etcd.endpoint)
    session = await session_on(coord.etcd, ttl_s=3)
    own_etcd.pause()
    paused_at = time.monotonic()
    reason = await session.wait_lost()
    assert time.monotonic() - paused_at < session.ttl_s
    assert "could not be renewed in time" in reason
    own_etcd.resume()


async def test_a_lost_session_is_dead_for_ever_though_its_lease_still_lives(
    own_etcd: EtcdServer, connected: Connect, session_on: OpenSession
) -> None:
    """R10: an etcd that comes back does not revive what stopped; nothing can be written."""
    coord = await connected(own_etcd.endpoint)
    session = await session_on(coord.etcd, ttl_s=3)
    own_etcd.pause()
    await session.wait_lost()
    own_etcd.resume()
    await coord.etcd.keep_alive(session.lease, timeout_s=10)
    await asyncio.sleep(1)  # in which a heartbeat that went on would have renewed it as well

    assert await coord.etcd.lease_ttl_s(session.lease) is not None, "etcd itself would still agree"
    with pytest.raises(LeaseLost):
        await session.txn(
            compare=(), success=[Put(f"{coord.keys.root}x", b"", session.lease)], failure=()
        )
    assert not session.is_live
    assert await coord.etcd.get(f"{coord.keys.root}x") is None


async def test_a_killed_etcd_ends_the_session_at_its_deadline(
    own_etcd: EtcdServer, connected: Connect, session_on: OpenSession
) -> None:
    coord = await connected(own_etcd.endpoint)
    session = await session_on(coord.etcd, ttl_s=2)
    own_etcd.kill()
    killed_at = time.monotonic()
    assert "could not be renewed in time" in await session.wait_lost()
    assert time.monotonic() - killed_at < session.ttl_s
    own_etcd.restart()


async def test_a_renewal_that_fails_is_no_loss_while_etcd_is_back_in_time(
    own_etcd: EtcdServer, connected: Connect, session_on: OpenSession
) -> None:
    """R10: an error is not a loss before the deadline."""
    coord = await connected(own_etcd.endpoint)
    session = await session_on(coord.etcd, ttl_s=6)
    own_etcd.kill()
    await until_true(lambda: session.remaining_s() < session.ttl_s * 0.3)
    own_etcd.restart()
    await until_true(lambda: session.remaining_s() > session.ttl_s * 0.5)
    assert session.is_live
    assert await coord.etcd.lease_ttl_s(session.lease) is not None


async def test_the_deadline_counts_from_when_the_renewal_was_sent(
    etcd_server: EtcdServer, connected: Connect, session_on: OpenSession
) -> None:
    """R7: what the reply took on its way is time the lease has already used up."""
    async with TcpProxy(etcd_server.endpoint) as proxy:
        coord = await connected(proxy.endpoint)
        # Long enough that a renewal may take two delays: a reply may come in two pieces.
        session = await session_on(coord.etcd, ttl_s=6)
        proxy.reply_delay_s = 0.4
        before = session.remaining_s()
        seen: list[float] = []

        def renewed() -> bool:
            seen.append(session.remaining_s())
            return len(seen) > 1 and seen[-1] > seen[-2]

        await until_true(renewed)
        assert before > session.ttl_s * LIVE_RATIO - 0.4
        assert seen[-1] <= session.ttl_s * LIVE_RATIO - 0.4
        await session.close()


async def test_the_time_to_live_is_what_etcd_granted(
    tmp_path: Path, connected: Connect, session_on: OpenSession
) -> None:
    """R7: an etcd with slow elections grants longer leases than it is asked for."""
    slow = ("--heartbeat-interval", "200", "--election-timeout", "2000")
    server = start_etcd(tmp_path / "slow", options=slow)
    with stopping(server):
        coord = await connected(server.endpoint)
        session = await session_on(coord.etcd, ttl_s=2)
        assert session.ttl_s == 3
        assert session.remaining_s() > 2 * LIVE_RATIO
        await session.close()


async def test_a_process_that_was_stopped_notices_the_loss_before_its_heartbeat_runs(
    coord: Coord, session_on: OpenSession
) -> None:
    """R7: whoever asks is told by the clock; nothing has to run in between."""
    session = await session_on(coord.etcd, ttl_s=2)
    time.sleep(session.remaining_s() + 0.01)  # noqa: ASYNC251  # stops the loop on purpose
    assert not session.is_live
    assert session.lost_reason is not None
    assert "stopped or too busy" in session.lost_reason


async def test_closing_deletes_what_hangs_on_the_session_and_may_be_repeated(
    coord: Coord, session_on: OpenSession
) -> None:
    session = await session_on(coord.etcd)
    key = f"{coord.keys.root}x"
    reply = await session.txn(compare=[absent(key)], success=[Put(key, b"v", session.lease)])
    assert await coord.etcd.get(key) == KeyValue(
        key, b"v", reply.revision, reply.revision, session.lease
    )
    await session.close()
    await session.close()
    assert await coord.etcd.get(key) is None
    assert session.lost_reason == "the session was closed"
    assert await session.wait_lost() == "the session was closed"


async def test_a_time_to_live_too_short_to_keep_is_refused(coord: Coord) -> None:
    with pytest.raises(UsageError, match="--lease-ttl"):
        await Session.open(coord.etcd, ttl_s=1)
