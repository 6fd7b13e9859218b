"""Web sites with a known link graph, served to real crawlers, with a log of what was asked when.

A :class:`Site` runs in a thread of the test process with a loop of its own, on one or several
loopback addresses (each a host of its own to a crawler). The log is the server's view: start = the
request's header is complete, end = the last byte of the response is handed to the kernel (or the
client has gone). Politeness is judged by it alone.

``closure`` is the yardstick of what a crawl must find: a breadth-first walk by urllib and
html.parser that shares no code with the crawler.
"""

from __future__ import annotations

import asyncio
import gzip
import html
import itertools
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from http import HTTPStatus
from typing import Literal, NamedTuple, Self

_STARTUP_S = 10.0
_SETTLE_S = 1.0


class Request(NamedTuple):
    """A request as it arrives."""

    host: int
    """Number of the address it came in on."""
    path: str
    """As sent, query included."""
    headers: Mapping[str, str]
    """Names in lower case."""
    nth: int
    """How many requests this path of this host has had, this one included."""
    peer: tuple[str, int]
    start: float
    """Monotonic."""

    @property
    def cookie(self) -> str:
        return self.headers.get("cookie", "")


class Entry(NamedTuple):
    """A request in the log; times are monotonic."""

    start: float
    end: float
    host: int
    path: str
    status: int
    user_agent: str
    peer: tuple[str, int]
    complete: bool
    """The response was sent whole; False also for a page that drops the connection."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """How a path answers."""

    status: int = 200
    title: str = "page"
    links: Sequence[str] = ()
    """Written as ``<a href>`` in this order."""
    body: bytes | None = None
    """In place of the HTML made of title and links."""
    content_type: str = "text/html; charset=utf-8"
    headers: Sequence[tuple[str, str]] = ()
    gzip: bool = False
    delay_s: float = 0.0
    """From the request to the response."""
    close: bool = False
    """Close the connection after it."""
    drop: bool = False
    """Close the connection instead of answering."""


_LAST_BYTES = 65_536

Answer = Page | Callable[[Request], Page]
"""What stands at a path: a page, or what makes one for each request."""


def redirect(target: str, *, status: int = 301, headers: Sequence[tuple[str, str]] = ()) -> Page:
    return Page(status=status, body=b"", headers=(("Location", target), *headers))


class Site:
    """A server; a context manager, or ``start`` and ``stop``."""

    def __init__(
        self,
        pages: Mapping[str, Answer] | Sequence[Mapping[str, Answer]],
        *,
        addresses: Sequence[str] = ("127.0.0.1",),
        otherwise: Answer | None = None,
    ) -> None:
        """Prepare.

        Args:
            pages: By path with query; one mapping for all hosts, or one for each.
            addresses: Loopback addresses to listen on (all of 127/8, ``::1``).
            otherwise: What answers every other path; by default 404.
        """
        shared = isinstance(pages, Mapping)
        self._pages = [pages] * len(addresses) if isinstance(pages, Mapping) else list(pages)
        assert shared or len(self._pages) == len(addresses)
        self._addresses = tuple(addresses)
        self._otherwise = otherwise or Page(status=404, title="not found")
        self._counts: Counter[tuple[int, str]] = Counter()
        self._ports: list[int] = []
        self._entries: list[Entry] = []
        self._writing = 0
        self.connections = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main(started)), name="site", daemon=True
        )
        self._thread.start()
        assert started.wait(_STARTUP_S), "the site did not start"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_STARTUP_S)
        assert not self._thread.is_alive(), "the site did not stop"

    @property
    def requests(self) -> list[Entry]:
        """The log so far, in the order in which the responses ended."""
        deadline = time.monotonic() + _SETTLE_S
        # A client may have the last byte before this server has noted that it was sent.
        while self._writing and time.monotonic() < deadline:
            time.sleep(0.001)
        return list(self._entries)

    def url(self, path: str = "/", *, host: int = 0) -> str:
        return f"http://{self.authority(host)}{path}"

    def authority(self, host: int = 0) -> str:
        """Return ``address:port`` as it stands in URLs."""
        address = self._addresses[host]
        return f"{f'[{address}]' if ':' in address else address}:{self._ports[host]}"

    def paths(self, host: int | None = None) -> list[str]:
        """Return the paths asked, in the order in which they were."""
        return [entry.path for entry in self._log(host)]

    def min_gap(self, host: int | None = None) -> float:
        """Return the least time from the end of a response to the start of the next request.

        Negative where requests overlapped; infinite with fewer than two. Without ``host``: the
        least of any host.
        """
        return min((self._gap(one) for one in self._hosts(host)), default=float("inf"))

    def min_start_gap(self, host: int | None = None) -> float:
        """Return the least time between the starts of two requests to a host."""
        gaps = [
            later.start - earlier.start
            for one in self._hosts(host)
            for earlier, later in itertools.pairwise(self._log(one))
        ]
        return min(gaps, default=float("inf"))

    def max_concurrency(self, host: int | None = None) -> int:
        """Return the most requests of a host that were open at one time."""
        most = 0
        for one in self._hosts(host):
            changes = sorted(
                change for entry in self._log(one) for change in ((entry.start, 1), (entry.end, -1))
            )
            now = 0
            for _, step in changes:
                now += step
                most = max(most, now)
        return most

    def _hosts(self, host: int | None) -> Iterable[int]:
        return range(len(self._addresses)) if host is None else (host,)

    def _log(self, host: int | None) -> list[Entry]:
        return sorted(entry for entry in self.requests if host in (None, entry.host))

    def _gap(self, host: int) -> float:
        gap, last_end = float("inf"), float("-inf")
        for entry in self._log(host):
            gap = min(gap, entry.start - last_end)
            last_end = max(last_end, entry.end)
        return gap

    async def _main(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()
        servers = []
        for number, address in enumerate(self._addresses):
            server = await asyncio.start_server(self._acceptor(number), address, 0, backlog=1024)
            self._ports.append(server.sockets[0].getsockname()[1])
            servers.append(server)
        started.set()
        await self._stopping.wait()
        for server in servers:
            server.close()
        while self._serving:
            await asyncio.wait(self._serving)

    def _acceptor(self, host: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            task = asyncio.create_task(self._serve(host, reader, writer))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

        return accept

    async def _serve(
        self, host: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        def leave(stopped: asyncio.Task[Literal[True]]) -> None:
            if not stopped.cancelled():
                writer.transport.abort()

        stopped = asyncio.create_task(self._stopping.wait())
        stopped.add_done_callback(leave)
        writer.transport.set_write_buffer_limits(0)  # draining means: the kernel has it all
        try:
            while await self._exchange(host, reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        finally:
            stopped.cancel()
            writer.close()

    async def _exchange(
        self, host: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        start = time.monotonic()
        path = head[0].split(" ")[1]
        fields = (line.partition(":") for line in head[1:] if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in fields}
        self._counts[host, path] += 1
        request = Request(
            host,
            path,
            headers,
            self._counts[host, path],
            writer.get_extra_info("peername")[:2],
            start,
        )
        answer = self._pages[host].get(path, self._otherwise)
        page = answer if isinstance(answer, Page) else answer(request)
        complete = False
        is_there = await self._wait(page.delay_s, reader)
        end = None
        self._writing += 1
        try:
            if is_there and not page.drop:
                response = _response(page)
                if len(response) > _LAST_BYTES:
                    writer.write(response[:-_LAST_BYTES])
                    await writer.drain()
                # Before the last bytes go: the client has them before this process runs again.
                end = time.monotonic()
                writer.write(response[-_LAST_BYTES:])
                await writer.drain()
                complete = True
        finally:
            self._entries.append(
                Entry(
                    start=start,
                    end=time.monotonic() if end is None else end,
                    host=host,
                    path=path,
                    status=page.status,
                    user_agent=headers.get("user-agent", ""),
                    peer=request.peer,
                    complete=complete,
                )
            )
            self._writing -= 1
        return complete and not page.close

    async def _wait(self, seconds: float, reader: asyncio.StreamReader) -> bool:
        """Wait; False as soon as the client leaves or the site stops."""
        if seconds <= 0:
            return True
        leaving = asyncio.ensure_future(reader.read(1))
        stopping = asyncio.ensure_future(self._stopping.wait())
        done, pending = await asyncio.wait(
            {leaving, stopping}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        return not done


def _response(page: Page) -> bytes:
    body = page.body
    if body is None:
        links = "".join(f'<p><a href="{html.escape(link)}">{link}</a></p>\n' for link in page.links)
        body = (
            f"<!doctype html><html><head><title>{html.escape(page.title)}</title></head>"
            f"<body>\n{links}</body></html>"
        ).encode()
    headers = [("Content-Type", page.content_type), *page.headers]
    if page.gzip:
        body = gzip.compress(body, mtime=0)
        headers.append(("Content-Encoding", "gzip"))
    if page.close:
        headers.append(("Connection", "close"))
    headers.append(("Content-Length", str(len(body))))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    phrase = HTTPStatus(page.status).phrase
    return f"HTTP/1.1 {page.status} {phrase}\r\n{lines}\r\n".encode("latin-1") + body


class Plain(NamedTuple):
    """An answer as urllib gives it."""

    status: int
    location: str | None
    content_type: str
    body: bytes


class _Hrefs(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("a", "area"):
            self.found += [value for name, value in attrs if name == "href" and value]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def plain_get(url: str) -> Plain:
    """Ask for one URL, following nothing."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        answer = opener.open(url, timeout=10)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return Plain(
            answer.status or 0,
            answer.headers.get("Location"),
            answer.headers.get_content_type(),
            answer.read(),
        )


def closure(
    start_urls: Iterable[str],
    fetch: Callable[[str], Plain] = plain_get,
    follow: Callable[[str], bool] = lambda _: True,
) -> dict[str, int]:
    """Return every URL that can be reached over links and redirects, with its status.

    Args:
        start_urls: Absolute; taken whatever ``follow`` says.
        fetch: Gets one URL.
        follow: Tells whether a URL found is part of the crawl.
    """
    waiting = list(dict.fromkeys(start_urls))
    seen = set(waiting)
    statuses: dict[str, int] = {}
    while waiting:
        url = waiting.pop(0)
        answer = fetch(url)
        statuses[url] = answer.status
        parser = _Hrefs()
        if answer.content_type == "text/html":
            parser.feed(answer.body.decode("utf-8", "replace"))
        targets = [answer.location] if answer.location else parser.found
        for target in targets:
            found = urllib.parse.urldefrag(urllib.parse.urljoin(url, target)).url
            if found.startswith("http") and found not in seen and follow(found):
                seen.add(found)
                waiting.append(found)
    return statuses
