"""Many hosts on loopback, good and hostile ones, served by a process of its own with a log.

One host is one address, all at the same port. The log has one line a request, in JSON: the host's
number, its kind, path, start (the request is read) and end (just before the last bytes are handed
to the kernel, or the client has left), both of the monotonic clock, and whether it was answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_PIECE = b"x" * 65_536
_BOMB = gzip.compress(bytes(200_000_000), 9)
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
_LINKED = 5
_LISTEN = 256


class Host(NamedTuple):
    """A host that is served: its kind is ``good`` or a name of :data:`HOSTILE`."""

    address: str
    kind: str = "good"
    pages: int = 10
    delay_s: float = 0.0
    """Before an answer."""
    robots: str = ""
    links: int = 1_000_000
    """On the one page of kind ``links``."""


class Seen(NamedTuple):
    """A line of the log."""

    host: int
    kind: str
    path: str
    start: float
    end: float
    answered: bool


class Served(NamedTuple):
    """Hosts that are being served."""

    port: int
    pid: int
    log: Path

    def url(self, host: Host, path: str = "/") -> str:
        return f"http://{host.address}:{self.port}{path}"

    def seen(self) -> list[Seen]:
        with self.log.open() as lines:
            return [Seen(*json.loads(line)) for line in lines if line.endswith("\n")]


@contextlib.contextmanager
def served(hosts: Sequence[Host], folder: Path) -> Iterator[Served]:
    """Serve hosts while the context is open."""
    log = folder / "requests.jsonl"
    log.touch()
    command = [sys.executable, __file__, str(log)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(hosts) + "\n")
        process.stdin.flush()
        yield Served(int(process.stdout.readline()), process.pid, log)
    finally:
        process.terminate()
        process.wait()


def _answer(head: bytes, body: bytes) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def _anchors(paths: Sequence[str]) -> bytes:
    return "".join(f'<a href="{path}">x</a>' for path in paths).encode()


@cache
def _links(count: int) -> bytes:
    # As short as a link can be: the page has to stay below the usual --max-body.
    return _answer(_HEAD, b"".join(b"<a href=%d>" % one for one in range(1, count + 1)))


Write = Callable[[bytes], Awaitable[None]]


async def _without_end(write: Write, first: bytes, piece: bytes, every_s: float) -> None:
    await write(first)
    while True:
        await write(piece)
        await asyncio.sleep(every_s)


async def _hostile(host: Host, number: int, write: Write) -> None:
    """Answer as a host of its kind does; returns or raises where the connection ends."""
    match host.kind:
        case "endless":
            await _without_end(write, _HEAD + b"\r\n", _PIECE, 0.001)
        case "trickle":
            await _without_end(write, _HEAD + b"\r\n", b"x", 0.2)
        case "headers":
            await _without_end(write, _HEAD, b"X-Filler: " + _PIECE[:1000] + b"\r\n", 0.001)
        case "interim":
            await _without_end(write, b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, 0.001)
        case "bomb":
            await write(_answer(_HEAD + b"Content-Encoding: gzip\r\n", _BOMB))
        case "loop":
            to = b"Location: /%d\r\n" % ((number + 1) % host.pages)
            await write(_answer(b"HTTP/1.1 302 Found\r\n" + to, b""))
        case "reset":
            raise ConnectionError
        case "garbage":
            await write(bytes(range(256)) * 16)
            raise ConnectionError
        case "silent":
            await asyncio.sleep(3600)
        case "links":
            await write(_links(host.links) if number == 0 else _answer(_HEAD, b"one of them"))


HOSTILE = (
    "endless", "trickle", "headers", "interim", "bomb", "loop", "reset", "garbage", "silent",
    "links",
)  # fmt: skip


class _Server:
    def __init__(self, hosts: Sequence[Host], log: Any) -> None:
        self._hosts = hosts
        self._log = log

    async def serve(self) -> None:
        port = 0
        for number, host in enumerate(self._hosts):
            taker = self._taker(number)
            started = await asyncio.start_server(taker, host.address, port, backlog=_LISTEN)
            port = started.sockets[0].getsockname()[1]
        print(port, flush=True)
        await asyncio.Event().wait()

    def _taker(self, number: int) -> Callable[..., Awaitable[None]]:
        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.set_write_buffer_limits(0)
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    await self._exchange(number, head.split(b" ")[1].decode(), reader, writer)
            writer.transport.abort()

        return take

    async def _exchange(
        self, number: int, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        host, start, end = self._hosts[number], time.monotonic(), 0.0

        async def write(data: bytes) -> None:
            nonlocal end
            end = time.monotonic()
            writer.write(data)
            await writer.drain()

        answering = asyncio.ensure_future(_reply(host, path, write))
        leaving = asyncio.ensure_future(reader.read(1))  # nothing comes before the answer
        try:
            await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
            is_whole = answering.done() and answering.exception() is None
            facts = (
                number,
                host.kind,
                path,
                start,
                end if is_whole else time.monotonic(),
                is_whole,
            )
            self._log.write(json.dumps(facts) + "\n")
            self._log.flush()
            answering.result() if answering.done() else _leave()
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)


def _leave() -> None:
    raise ConnectionError("the client has left")


async def _reply(host: Host, path: str, write: Write) -> None:
    await asyncio.sleep(host.delay_s)
    if path == "/robots.txt":
        await write(
            _answer(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n", host.robots.encode())
        )
        return
    name = path.rpartition("/")[2]
    number = int(name) if name.isdigit() else 0
    if host.kind == "good" or (path == "/" and host.kind != "links"):
        ahead = range(number + 1, min(number + 1 + _LINKED, host.pages))
        paths = [f"/{one}" for one in (ahead if host.kind == "good" else range(host.pages))]
        await write(_answer(_HEAD, _anchors([*paths, "/denied"] if host.robots else paths)))
    else:
        await _hostile(host, number, write)


def main() -> None:
    hosts = [Host(*one) for one in json.loads(sys.stdin.readline())]
    for host in hosts:
        if host.kind == "links":
            _links(host.links)  # now, since it takes a while
    with Path(sys.argv[1]).open("a") as log, contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_Server(hosts, log).serve())


if __name__ == "__main__":
    main()
