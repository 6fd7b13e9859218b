"""Serves a generated graph and logs every request; a process of its own, standard library only.

Run as ``site.py FOLDER``: reads ``graph.json`` there, writes ``ports.json`` once it listens, a
line of ``asked.log`` as a request comes and of ``requests.jsonl`` as its response ends. The log is
the server's view: start = the request is complete, end = the last byte is handed to the kernel (or
the client has gone). Times are those
of the machine's monotonic clock, which all processes share. Every line also holds how late this
process itself was lately, so that nobody is blamed for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

BEAT_S = 0.01


class Serving:
    def __init__(self, graph: dict[str, Any], log: TextIO, arrivals: TextIO) -> None:
        self.arrivals = arrivals
        self.hosts = graph["hosts"]
        self.ports: list[int] = []
        self.log = log
        self.asked: Counter[tuple[int, str]] = Counter()
        self.connections = itertools.count(1)
        self.lag_s = 0.0

    async def run(self, folder: Path) -> None:
        for number in range(len(self.hosts)):
            server = await asyncio.start_server(
                lambda reader, writer, number=number: self.serve(number, reader, writer),  # type: ignore[misc]
                "127.0.0.1",
                0,
            )
            self.ports.append(server.sockets[0].getsockname()[1])
        (folder / "ports.part").write_text(json.dumps(self.ports))
        (folder / "ports.part").rename(folder / "ports.json")
        while True:
            before = time.monotonic()
            await asyncio.sleep(BEAT_S)
            late = time.monotonic() - before - BEAT_S
            self.lag_s = max(late, self.lag_s * 0.98)

    async def serve(
        self, host: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        connection = next(self.connections)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                await self.answer(host, head.split(" ", 2)[1], connection, reader, writer)
        writer.close()

    async def answer(
        self,
        host: int,
        path: str,
        connection: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        started, complete, status = time.monotonic(), False, 0
        self.asked[host, path] += 1
        self.arrivals.write(f"{host} {path}\n")
        try:
            status, location, body, delay_s = self.find(host, path)
            if delay_s:
                # The client is gone when its side of the connection ends.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay_s):
                        await reader.read(1)
                        return
            head = (
                f"HTTP/1.1 {status} X\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n"
            )
            if location:
                head += f"Location: {location}\r\n"
            writer.write(head.encode() + b"\r\n" + body)
            await writer.drain()
            complete = True
        finally:
            entry = {
                "host": host, "path": path, "started": started, "ended": time.monotonic(),
                "connection": connection, "status": status, "complete": complete,
                "lag_s": round(self.lag_s, 4),
            }  # fmt: skip
            self.log.write(json.dumps(entry) + "\n")

    def find(self, host: int, path: str) -> tuple[int, str | None, bytes, float]:
        """Return status, location, body and delay."""
        known = self.hosts[host]
        if path == "/robots.txt":
            robots = known["robots"]
            return (404, None, b"", 0.0) if robots is None else (200, None, robots.encode(), 0.0)
        page = known["pages"].get(path)
        if page is None or page["kind"] == "gone":
            return 404, None, b"gone", 0.0
        if self.asked[host, path] <= page["refusals"]:
            return 503, None, b"busy", 0.0
        urls = [f"http://127.0.0.1:{self.ports[at]}{link}" for at, link in page["links"]]
        if page["kind"] == "fickle" and self.asked[host, path] > 1:
            del urls[0]
        if page["kind"] == "redirect":
            return 301, urls[0], b"", 0.0
        anchors = "".join(f'<a href="{url}">x</a>\n' for url in urls)
        return 200, None, f"<html><title>{path}</title>{anchors}</html>".encode(), page["delay_s"]


def main() -> None:
    folder = Path(sys.argv[1])
    graph = json.loads((folder / "graph.json").read_text())
    with (
        (folder / "requests.jsonl").open("w", buffering=1) as log,
        (folder / "asked.log").open("w", buffering=1) as arrivals,
    ):
        asyncio.run(Serving(graph, log, arrivals).run(folder))


if __name__ == "__main__":
    main()
