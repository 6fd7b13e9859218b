"""The client against real etcds: what fails how, TLS, users, host names."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from common.coord import Coord, Etcd, EtcdOptions, Mirror, connect
from common.coord.wire import Delete, Put, absent, messages
from common.model.errors import (
    CoordUnavailable,
    LeaseLost,
    RefusedError,
    SettingsError,
    UnknownOutcome,
)
from tests.integration.coord.conftest import Connect
from tests.support.certificates import certificates
from tests.support.etcdusers import with_users
from tests.support.servers import EtcdServer, free_ports, start_etcd, stopping
from tests.support.tcpproxy import TcpProxy
from tests.support.waiting import until_true


async def test_an_unreachable_etcd_is_reported_in_time_with_every_endpoint() -> None:
    first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
    started_at = time.monotonic()
    with pytest.raises(CoordUnavailable) as caught:
        await Etcd(EtcdOptions(endpoints=(first, second))).open(timeout_s=0.8)
    assert time.monotonic() - started_at < 5
    for part in (first, second, "Connection refused", "--etcd"):
        assert part in str(caught.value)


@pytest.mark.parametrize(("cluster", "ends"), [("default", "DIR'"), ("c2", "DIR --cluster c2'")])
async def test_who_finds_no_etcd_is_told_what_would_start_this_cluster(
    cluster: str, ends: str
) -> None:
    (port,) = free_ports(1)
    with pytest.raises(CoordUnavailable) as caught:
        await connect(EtcdOptions(endpoints=(f"127.0.0.1:{port}",)), cluster=cluster, timeout_s=0.5)
    assert str(caught.value).endswith(ends)
    assert 1 == str(caught.value).count(str(port))


async def test_an_etcd_that_takes_the_connection_and_is_silent_is_reported_in_time(
    own_etcd: EtcdServer,
) -> None:
    own_etcd.pause()
    started_at = time.monotonic()
    with pytest.raises(CoordUnavailable, match=own_etcd.endpoint):
        await Etcd(EtcdOptions(endpoints=(own_etcd.endpoint,))).open(timeout_s=0.8)
    assert time.monotonic() - started_at < 5
    own_etcd.resume()


async def test_an_endpoint_may_be_a_host_name_and_others_may_be_down(
    etcd_server: EtcdServer, connected: Connect
) -> None:
    port = etcd_server.endpoint.rpartition(":")[2]
    dead = [f"127.0.0.1:{port}" for port in free_ports(2)]
    coord = await connected(dead[0], f"localhost:{port}", dead[1])
    for _ in range(4):
        assert await coord.etcd.get(coord.keys.buried) is None
    status = await coord.etcd.status()
    assert [one.endpoint for one in status] == [dead[0], f"localhost:{port}", dead[1]]
    assert [one.error is None for one in status] == [False, True, False]
    assert status[1].version.startswith("3.")
    assert status[1].is_leader
    assert status[1].raft_term > 0
    assert status[1].db_size > 0


async def test_a_write_that_never_left_is_unavailable_and_one_without_an_answer_unknown(
    own_etcd: EtcdServer, connected: Connect
) -> None:
    """R12: "surely not applied" and "unknown" are different errors."""
    coord = await connected(own_etcd.endpoint)
    put = [Put(f"{coord.keys.root}x", b"")]
    own_etcd.pause()
    with pytest.raises(UnknownOutcome):
        await coord.etcd.txn(compare=(), success=put, attempt_timeout_s=0.5)
    own_etcd.kill()
    # The connection of a killed server takes a write as long as its end is not seen; the failed
    # read has seen it.
    with pytest.raises(CoordUnavailable):
        await coord.etcd.get(coord.keys.buried)
    with pytest.raises(CoordUnavailable):
        await coord.etcd.txn(compare=(), success=put, timeout_s=0.5)


async def test_a_write_whose_connection_breaks_is_unknown(
    etcd_server: EtcdServer, connected: Connect
) -> None:
    async with TcpProxy(etcd_server.endpoint) as proxy:
        coord = await connected(proxy.endpoint)
        proxy.hold_from = b""
        put = [Put(f"{coord.keys.root}x", b"")]
        writing = asyncio.create_task(coord.etcd.txn(compare=(), success=put))
        await until_true(lambda: proxy.held_bytes)
        await proxy.cut()
        with pytest.raises(UnknownOutcome):
            await writing


async def test_a_write_that_waited_for_a_connection_in_vain_never_left(
    etcd_server: EtcdServer,
) -> None:
    """R12: a server that takes connections and is silent has seen no request."""
    async with TcpProxy(etcd_server.endpoint) as proxy:
        proxy.is_losing_replies = True
        etcd = Etcd(EtcdOptions(endpoints=(proxy.endpoint,)))
        etcd._transport.open()
        with pytest.raises(CoordUnavailable, match=proxy.endpoint):
            await etcd.txn(
                compare=(), success=[Put("/x", b"")], timeout_s=0.6, attempt_timeout_s=0.3
            )
        await etcd.close()


async def test_a_read_without_an_answer_is_asked_again(
    etcd_server: EtcdServer, connected: Connect
) -> None:
    async with TcpProxy(etcd_server.endpoint) as proxy:
        coord = await connected(proxy.endpoint)
        proxy.hold_from = b""
        reading = asyncio.create_task(coord.etcd.get(coord.keys.buried))
        await until_true(lambda: proxy.held_bytes)
        proxy.hold_from = None
        await proxy.cut()
        assert await reading is None


async def test_what_etcd_refuses_is_told_apart_from_what_it_does_not_answer(coord: Coord) -> None:
    key = f"{coord.keys.root}x"
    with pytest.raises(RefusedError, match="duplicate key"):
        await coord.etcd.txn(compare=(), success=[Put(key, b""), Delete(key)])
    granted = await coord.etcd.grant(60)
    await coord.etcd.revoke(granted.lease)
    await coord.etcd.revoke(granted.lease)
    with pytest.raises(LeaseLost):
        await coord.etcd.txn(compare=[absent(key)], success=[Put(key, b"", granted.lease)])
    assert await coord.etcd.keep_alive(granted.lease, timeout_s=1) == 0
    assert await coord.etcd.lease_ttl_s(granted.lease) is None
    assert await coord.etcd.get(key) is None


async def test_a_call_on_a_closed_client_ends_as_unavailable(
    own_etcd: EtcdServer, connected: Connect
) -> None:
    coord = await connected(own_etcd.endpoint)
    own_etcd.pause()
    reading = asyncio.create_task(coord.etcd.get(coord.keys.buried))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(reading), 0.1)
    await coord.close()
    with pytest.raises(CoordUnavailable):
        await asyncio.wait_for(reading, 1)
    with pytest.raises(CoordUnavailable):
        await coord.etcd.get(coord.keys.buried)
    own_etcd.resume()


async def test_tls_with_certificates_of_both_sides(tmp_path: Path, cluster_name: str) -> None:
    files = certificates(tmp_path / "tls")
    options = (
        *("--cert-file", files.cert, "--key-file", files.key),
        *("--trusted-ca-file", files.ca, "--client-cert-auth"),
    )
    server = start_etcd(tmp_path / "etcd", scheme="https", options=options)
    with stopping(server):
        port = server.endpoint.rpartition(":")[2]
        for endpoint in (server.endpoint, f"localhost:{port}"):
            coord = await connect(
                EtcdOptions(
                    endpoints=(endpoint,),
                    cacert=files.ca,
                    cert=files.cert,
                    key=files.key,
                ),
                cluster=cluster_name,
            )
            assert (await coord.etcd.status())[0].error is None
            await coord.close()
        for wrong in (
            EtcdOptions(endpoints=(server.endpoint,)),
            EtcdOptions(endpoints=(server.endpoint,), cacert=files.ca),
        ):
            with pytest.raises(CoordUnavailable, match=server.endpoint):
                await connect(wrong, cluster=cluster_name, timeout_s=0.5)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (EtcdOptions(endpoints=("h:1",), cacert="/nowhere.pem"), "--etcd-cacert"),
        (EtcdOptions(endpoints=("h:1",), cert="/nowhere.pem"), "--etcd-key"),
        (EtcdOptions(endpoints=("h:1",), key="/nowhere.pem"), "--etcd-cert"),
    ],
)
async def test_a_wrong_certificate_setting_is_named(options: EtcdOptions, field: str) -> None:
    with pytest.raises(SettingsError, match=field):
        await Etcd(options).open(timeout_s=0.5)


async def test_a_restarted_etcd_that_forgot_the_token_is_told_the_user_again(
    own_etcd: EtcdServer, connected: Connect, cluster_name: str
) -> None:
    """R19: calls and watches go on; etcd keeps tokens in memory only."""
    await with_users(await connected(own_etcd.endpoint))
    user = EtcdOptions(endpoints=(own_etcd.endpoint,), user="anna", password="secret")
    coord, writer = [await connect(user, cluster=cluster_name) for _ in range(2)]
    key = coord.keys.job("j")
    mirror = Mirror(coord.etcd, coord.keys.jobs)
    await mirror.start()
    assert (await coord.etcd.txn(compare=(), success=[Put(key, b"1")])).succeeded
    await until_true(lambda: key in mirror.items)

    own_etcd.restart()
    reply = await writer.etcd.txn(compare=(), success=[Put(key, b"2")])
    await until_true(lambda: mirror.items[key].mod_revision == reply.revision)
    await mirror.close()
    await coord.close()
    await writer.close()


async def test_a_token_older_than_a_change_of_users_is_renewed(
    own_etcd: EtcdServer, connected: Connect, cluster_name: str
) -> None:
    """R19: the call was not carried out, so it may be made again."""
    await with_users(await connected(own_etcd.endpoint))
    where = (own_etcd.endpoint,)
    anna = EtcdOptions(endpoints=where, user="anna", password="secret")
    root = EtcdOptions(endpoints=where, user="root", password="r")
    coord, admin = [await connect(user, cluster=cluster_name) for user in (anna, root)]
    member, options = await admin.etcd._transport.stream(timeout_s=2)
    await member.auth.UserAdd(messages.AuthUserAddRequest(name="bert", password="b"), **options)
    put = Put(f"{coord.keys.root}x", b"")
    assert (await coord.etcd.txn(compare=(), success=[put])).succeeded
    await coord.close()
    await admin.close()


async def test_a_wrong_user_and_a_forbidden_key_are_named(
    own_etcd: EtcdServer, connected: Connect, cluster_name: str
) -> None:
    await with_users(await connected(own_etcd.endpoint))
    where = (own_etcd.endpoint,)
    for wrong in (
        EtcdOptions(endpoints=where),
        EtcdOptions(endpoints=where, user="anna", password="guess"),
        EtcdOptions(endpoints=where, user="nobody", password="guess"),
    ):
        with pytest.raises(SettingsError, match="--etcd-user"):
            await connect(wrong, cluster=cluster_name)
    anna = EtcdOptions(endpoints=where, user="anna", password="secret")
    coord = await connect(anna, cluster=cluster_name)
    with pytest.raises(RefusedError, match="permission denied"):
        await coord.etcd.get("/elsewhere")
    await coord.close()


async def test_a_user_given_to_an_etcd_without_users_does_no_harm(
    etcd_server: EtcdServer, cluster_name: str
) -> None:
    user = EtcdOptions(endpoints=(etcd_server.endpoint,), user="anna", password="secret")
    coord = await connect(user, cluster=cluster_name)
    assert await coord.etcd.get(coord.keys.buried) is None
    await coord.close()
