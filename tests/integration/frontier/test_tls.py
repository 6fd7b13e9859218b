"""TLS with certificates of both sides."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme

from common.frontier import FrontierClient, RedisOptions
from common.model.errors import FrontierUnavailable, SettingsError
from tests.support.servers import RedisServer


@asynccontextmanager
async def _tls_front(plain_port: int, authority: trustme.CA) -> AsyncIterator[int]:
    """Serve TLS before a plain server, as servers built without TLS are run; yields the port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", plain_port)
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield int(server.sockets[0].getsockname()[1])
        server.close()


async def test_both_sides_show_a_certificate(tmp_path: Path, redis_server: RedisServer) -> None:
    authority = trustme.CA()
    ours = authority.issue_cert("client")
    files = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "cert", "key")}
    authority.cert_pem.write_to_path(files["ca"])
    ours.private_key_pem.write_to_path(files["key"])
    ours.cert_chain_pems[0].write_to_path(files["cert"])
    plain_port = int(redis_server.url.rpartition(":")[2].partition("/")[0])
    async with _tls_front(plain_port, authority) as port:
        urls = (f"rediss://127.0.0.1:{port}/0",)
        pair = {"cert": files["cert"], "key": files["key"]}
        client = FrontierClient(RedisOptions(urls=urls, cacert=files["ca"], **pair))
        await client.open()
        assert client.known_run("any")
        await client.close()
        for wrong in (
            RedisOptions(urls=urls, **pair),
            RedisOptions(urls=urls, cacert=files["ca"]),
        ):
            with pytest.raises(FrontierUnavailable, match=f"127.0.0.1:{port}"):
                await FrontierClient(wrong).open()


@pytest.mark.parametrize("name", ["cacert", "cert", "key"])
def test_a_certificate_file_that_is_missing_is_a_setting(name: str, tmp_path: Path) -> None:
    files = dict.fromkeys(("cacert", "cert", "key"), __file__) | {name: str(tmp_path / "none.pem")}
    with pytest.raises(SettingsError, match=rf"--redis-{name}: cannot read .*none\.pem"):
        FrontierClient(RedisOptions(urls=("rediss://127.0.0.1:1/0",), **files))
