"""The network between nodes and services: one TCP proxy for each pair, all in this process.

A *wire* is one direction of one pair. What passes a wire can be held (and delivered later, as TCP
does when a cut heals), lost (the connection then ends when the cut heals, as it must) or be slow.
New connections over a cut pair hang. Each pair knows which local ports it uses towards the service,
so that the service's own history tells which node did what.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Literal

Direction = Literal["both", "requests", "replies"]
How = Literal["hold", "lose"]

_CHUNK_BYTES = 65536


class Wire:
    """One direction of a pair."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.chunk_bytes = _CHUNK_BYTES
        self.held_bytes = 0
        self._mark: tuple[bytes, Callable[[], None]] | None = None
        self._how: How | None = None
        self._open = asyncio.Event()
        self._open.set()

    def cut(self, how: How) -> None:
        self._how = how
        self._open.clear()

    def trickle(self, chunk_bytes: int, delay_s: float) -> None:
        """Let only so much through at a time."""
        self.chunk_bytes, self.delay_s = chunk_bytes, delay_s

    def watch_for(self, mark: bytes | None, act: Callable[[], None]) -> None:
        """Do something as soon as these bytes come, before they pass. Once; None = never."""
        self._mark = None if mark is None else (mark, act)

    def heal(self) -> None:
        self._how = None
        self.delay_s, self.chunk_bytes = 0.0, _CHUNK_BYTES
        self._mark = None
        self._open.set()

    async def passes(self, data: bytes = b"") -> bool:
        """Wait while held; False when what passes now is lost."""
        if self._mark is not None and self._mark[0] in data:
            act, self._mark = self._mark[1], None
            act()
        if self._how == "lose":
            return False
        self.held_bytes += len(data)
        await self._open.wait()
        self.held_bytes -= len(data)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        return True


class _Connection:
    def __init__(
        self, pair: Pair, client: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ) -> None:
        self.pair = pair
        self.client_reader, self.client = client
        self.server: asyncio.StreamWriter | None = None
        self.is_torn = False
        """Something was lost on it: it cannot go on."""

    async def run(self) -> None:
        try:
            with contextlib.suppress(OSError):
                await self.pair.requests.passes()
                await self.pair.gate.wait()
                reader, self.server = await asyncio.open_connection(*self.pair.target)
                self.pair.note(self.server.get_extra_info("sockname")[1])
                pumps = [
                    asyncio.create_task(
                        self._pump(self.client_reader, self.server, self.pair.requests)
                    ),
                    asyncio.create_task(self._pump(reader, self.client, self.pair.replies)),
                ]
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: Wire
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK_BYTES):
                for start in range(0, len(data), size := wire.chunk_bytes):
                    part = data[start : start + size]
                    if not await wire.passes(part):
                        self.is_torn = True
                    if not self.is_torn:
                        writer.write(part)
                        await writer.drain()
            # The end of a connection travels like everything else.
            await wire.passes()

    def close(self) -> None:
        for writer in (self.client, self.server):
            if writer is not None:
                writer.transport.abort()


class Pair:
    """A node's way to one server."""

    def __init__(
        self, node: str, service: str, target: str, nodes_by_port: dict[tuple[str, int], str]
    ) -> None:
        self.node = node
        self.service = service
        host, _, port = target.rpartition(":")
        self.target = (host, int(port))
        self.requests, self.replies = Wire(), Wire()
        self.label = node
        """Which process uses it now: a slot's processes follow one another."""
        self._nodes_by_port = nodes_by_port
        self.endpoint = ""
        self.gate = asyncio.Event()
        """Connections to the service are only opened while it is set."""
        self.gate.set()
        self._connections: dict[_Connection, asyncio.Task[None]] = {}
        self._listener: asyncio.Server | None = None

    async def open(self) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.endpoint = f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        tasks = list(self._connections.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def note(self, port: int) -> None:
        # Connections to different servers may have the same local port at the same time.
        self._nodes_by_port[self.service, port] = self.label

    def wires(self, direction: Direction) -> list[Wire]:
        return {
            "both": [self.requests, self.replies],
            "requests": [self.requests],
            "replies": [self.replies],
        }[direction]

    def cut(self, direction: Direction, how: How) -> None:
        for wire in self.wires(direction):
            wire.cut(how)

    @property
    def held_bytes(self) -> int:
        """What a cut keeps back of the requests right now."""
        return self.requests.held_bytes

    def hold_from(self, mark: bytes | None) -> None:
        """Hold requests from the one on that holds these bytes; None = do not."""
        self.requests.watch_for(mark, lambda: self.requests.cut("hold"))

    def slow(self, delay_s: float) -> None:
        for wire in self.wires("both"):
            wire.delay_s = delay_s

    def heal(self) -> None:
        for wire in self.wires("both"):
            wire.heal()
        for connection in list(self._connections):
            if connection.is_torn:
                connection.close()

    def reset(self) -> None:
        """Break every connection."""
        for connection in list(self._connections):
            connection.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self, (reader, writer))
        task = asyncio.create_task(connection.run())
        self._connections[connection] = task
        task.add_done_callback(lambda _: self._connections.pop(connection, None))


class Network:
    """Every pair of node and service."""

    def __init__(self) -> None:
        self.pairs: list[Pair] = []
        # One for all: the system gives a port that is free again to any of them.
        self._nodes_by_port: dict[tuple[str, int], str] = {}

    async def connect(self, node: str, service: str, target: str) -> Pair:
        pair = Pair(node, service, target, self._nodes_by_port)
        await pair.open()
        self.pairs.append(pair)
        return pair

    def of(self, node: str, service: str) -> list[Pair]:
        """Return a node's ways to a service (etcd has several members)."""
        return [pair for pair in self.pairs if pair.node == node and pair.service == service]

    def node_at(self, service: str, port: int) -> str | None:
        """Return the process that speaks to a service from a local port."""
        return self._nodes_by_port.get((service, port))

    def heal(self, pairs: Iterable[Pair] | None = None) -> None:
        for pair in self.pairs if pairs is None else pairs:
            pair.heal()

    async def close(self) -> None:
        await asyncio.gather(*(pair.close() for pair in self.pairs))
