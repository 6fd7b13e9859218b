"""A TCP proxy that loses, holds and delays what passes between a client and a server.

It stands for a network: the client is given ``endpoint`` in place of the server's. The usual fault
is a request whose reply never comes, and which may still arrive at the server long after the client
gave it up (``strand`` and ``deliver``).
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class Late:
    """Requests of a broken connection, still on their way to the server."""

    def __init__(self, server: asyncio.StreamWriter, requests: bytes) -> None:
        self.size_bytes = len(requests)
        self._server = server
        self._requests = requests

    async def deliver(self) -> None:
        """Let them arrive; whatever the server replies is lost."""
        self._server.write(self._requests)
        await self._server.drain()

    def drop(self) -> None:
        self._server.close()


class _Connection:
    def __init__(
        self,
        proxy: TcpProxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.client_reader, self.client = client
        self.server_reader, self.server = server
        self.held = bytearray()
        self._proxy = proxy
        self._pumps = [
            asyncio.create_task(self._pump_requests()),
            asyncio.create_task(self._pump_replies()),
        ]

    async def _pump_requests(self) -> None:
        while data := await self._read(self.client_reader):
            if self.held or self._proxy.is_to_be_held(data):
                self.held += data
                continue
            await self._write(self.server, data)
        self.server.close()

    async def _pump_replies(self) -> None:
        while data := await self._read(self.server_reader):
            if self._proxy.is_losing_replies:
                continue
            if self._proxy.reply_delay_s:
                await asyncio.sleep(self._proxy.reply_delay_s)
            await self._write(self.client, data)
        self.client.close()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.read(65536)
        except ConnectionError:
            return b""

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            await writer.drain()

    async def stop(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def cut(self) -> None:
        await self.stop()
        self.client.close()
        self.server.close()


class TcpProxy:
    """Use with ``async with``; the faults are plain attributes."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener: asyncio.Server | None = None
        self._connections: list[_Connection] = []
        self.endpoint = ""
        self.hold_from: bytes | None = None
        """Keep back what a client sends, beginning with what holds these bytes; see ``strand``."""
        self.is_losing_replies = False
        """Drop what the server sends."""
        self.is_refusing = False
        """Close new connections at once."""
        self.reply_delay_s = 0.0

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._listener.sockets[0].getsockname()[1]
        self.endpoint = f"127.0.0.1:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        await self.cut()

    @property
    def held_bytes(self) -> int:
        return sum(len(connection.held) for connection in self._connections)

    def is_to_be_held(self, data: bytes) -> bool:
        return self.hold_from is not None and self.hold_from in data

    async def cut(self) -> None:
        """Break every connection on both sides."""
        connections, self._connections = self._connections, []
        for connection in connections:
            await connection.cut()

    async def strand(self) -> list[Late]:
        """Break the clients' sides only; what was held is late, new connections are healthy."""
        connections, self._connections = self._connections, []
        self.hold_from = None
        stranded = []
        for connection in connections:
            await connection.stop()
            connection.client.close()
            stranded.append(Late(connection.server, bytes(connection.held)))
        return stranded

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_refusing:
            writer.close()
            return
        try:
            server = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        self._connections.append(_Connection(self, (reader, writer), server))
