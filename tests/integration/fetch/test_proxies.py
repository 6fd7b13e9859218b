"""SOCKS5 proxies: a small real one, names looked up at its side, failures named."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.fetching import Fetching, code_of
from tests.support.rawserver import RawServer, Reply, page


class Socks:
    """A SOCKS5 proxy that leads every name to loopback."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.asked: list[tuple[str, int]] = []
        self.logins: list[tuple[bytes, bytes]] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, count = await reader.readexactly(2)
        methods = await reader.readexactly(count)
        if 2 in methods:
            writer.write(b"\x05\x02")
            _, length = await reader.readexactly(2)
            name = await reader.readexactly(length)
            word = await reader.readexactly((await reader.readexactly(1))[0])
            self.logins.append((name, word))
            writer.write(b"\x01\x00")
        else:
            writer.write(b"\x05\x00")
        _, _, _, kind = await reader.readexactly(4)
        if kind == 1:
            host = ".".join(map(str, await reader.readexactly(4)))
        else:
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        (port,) = struct.unpack("!H", await reader.readexactly(2))
        self.asked.append((host, port))
        if self.refuses:
            writer.write(b"\x05\x05\x00\x01" + bytes(6))
            return
        writer.write(b"\x05\x00\x00\x01" + bytes(6))
        there, out = await asyncio.open_connection("127.0.0.1", port)
        copying = asyncio.create_task(_copy(reader, out))
        await _copy(there, writer)
        copying.cancel()
        out.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def socks(*, refuses: bool = False) -> AsyncIterator[Socks]:
    proxy = Socks(refuses=refuses)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    yield proxy
    server.close()


async def test_socks_proxy_looks_the_name_up(fetch: Fetching) -> None:
    async with (
        RawServer({"/": Reply(page(b"in", headers=()), end="close")}) as site,
        socks() as proxy,
    ):
        spec = {"proxy": f"socks5://me:secret@127.0.0.1:{proxy.port}"}
        fetched = await fetch(f"http://no-such-name.test:{site.port}/", spec=spec)

    assert (fetched.status, fetched.body, fetched.ip) == (200, b"in", None)
    assert proxy.asked == [("no-such-name.test", site.port)]
    assert proxy.logins == [(b"me", b"secret")]


async def test_refusal_of_a_socks_proxy_is_named(fetch: Fetching) -> None:
    async with socks(refuses=True) as proxy:
        spec = {"proxy": f"socks5://127.0.0.1:{proxy.port}"}
        fetched = await fetch("http://h.test/", spec=spec)

    assert code_of(fetched) == "connect_failed"
    assert fetched.error is not None
    assert "proxy" in fetched.error.message


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "169.254.169.254"])
async def test_private_addresses_are_not_asked_of_a_socks_proxy(fetch: Fetching, host: str) -> None:
    async with socks() as proxy:
        spec = {"proxy": f"socks5://127.0.0.1:{proxy.port}", "allow_private": False}
        fetched = await fetch(f"http://{host}/", spec=spec)

    assert code_of(fetched) == "private_address"
    assert proxy.asked == []
