"""A TCP server that answers scripted bytes by path: for framing no HTTP library would produce."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Literal, Self


@dataclass(frozen=True)
class Reply:
    """Bytes to send, and what becomes of the connection then."""

    data: bytes
    end: Literal["keep", "close", "reset", "hang"] = "keep"
    pause_s: float = 0.0
    """Between sending and the end."""


@dataclass(frozen=True)
class RawRequest:
    head: bytes
    connection: int
    """Number of the connection, from 1."""

    @property
    def target(self) -> str:
        return self.head.split(b" ", 2)[1].decode("latin-1")

    def header(self, name: str) -> str | None:
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name.lower().encode():
                return value.strip().decode("latin-1")
        return None


@dataclass
class Exchange:
    """One request being answered by a script."""

    request: RawRequest
    writer: asyncio.StreamWriter
    stopping: asyncio.Event

    async def send(self, data: bytes) -> bool:
        """Write; False once the client or the server is gone."""
        if self.writer.is_closing() or self.stopping.is_set():
            return False
        self.writer.write(data)
        try:
            await self.writer.drain()
        except ConnectionError:
            return False
        return True

    async def pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.stopping.wait(), seconds)
        except TimeoutError:
            return

    async def finish(self, reply: Reply) -> bool:
        """Send a reply; True if the connection may be used again."""
        await self.send(reply.data)
        if reply.pause_s:
            await self.pause(reply.pause_s)
        match reply.end:
            case "keep":
                return not self.writer.is_closing()
            case "hang":
                await self.stopping.wait()
            case "reset":
                sock = self.writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.writer.transport.abort()
        return False


Script = Reply | Callable[[Exchange], Awaitable[Reply | None]]


@dataclass
class RawServer:
    """To be used as an async context manager; answers 404 to paths without a script."""

    scripts: dict[str, Script]
    address: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None
    requests: list[RawRequest] = field(default_factory=list)
    connections: int = 0
    open_connections: int = 0
    port: int = 0

    async def __aenter__(self) -> Self:
        self._stopping = asyncio.Event()
        self._handlers: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(
            self._accept, self.address, 0, ssl=self.tls, limit=2**20
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping.set()
        self._server.close()
        while self._handlers:
            await asyncio.wait(self._handlers)

    def url(self, path: str) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{path}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        number = self.connections
        try:
            while (head := await self._head(reader)) is not None:
                request = RawRequest(head, number)
                self.requests.append(request)
                script = self.scripts.get(request.target, _NOT_FOUND)
                exchange = Exchange(request, writer, self._stopping)
                reply = script if isinstance(script, Reply) else await script(exchange)
                if reply is not None and not await exchange.finish(reply):
                    break
        finally:
            self.open_connections -= 1
            writer.close()

    async def _head(self, reader: asyncio.StreamReader) -> bytes | None:
        reading = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not reading.done():
            reading.cancel()
            return None
        try:
            return reading.result()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            return None


def page(
    body: bytes = b"<title>ok</title>",
    *,
    status: str = "200 OK",
    headers: tuple[bytes, ...] = (b"Content-Type: text/html",),
) -> bytes:
    """Return a well-formed response."""
    length = b"Content-Length: %d" % len(body)
    return b"\r\n".join((f"HTTP/1.1 {status}".encode(), *headers, length, b"", body))


_NOT_FOUND = Reply(page(b"", status="404 Not Found"))


@contextmanager
def full_backlog(address: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """A port that lets connections hang: its queue is full and nobody accepts."""
    with socket.socket() as listener:
        listener.bind((address, port))
        listener.listen(0)
        waiting = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
            waiting.append(client)
        try:
            yield listener.getsockname()[1]
        finally:
            for client in waiting:
                client.close()


@asynccontextmanager
async def serving(servers: Iterable[RawServer]) -> AsyncIterator[None]:
    """Run them for a while."""
    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
        yield
