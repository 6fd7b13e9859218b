"""The HTTP session of one job: connection pool, name look-ups, address checks, headers, cookies.

Only ``worker.fetch`` uses it. Whatever is changed about the HTTP library's own behaviour is here:

* No connection to an address that is not public, unless the job allows it. The check sits where the
  socket for an address is made, so neither redirects nor changing DNS answers get around it.
* Names are looked up in threads of our own: the event loop's few would easily all be waiting for
  one slow name server.
* A dropped connection is reported, not tried again at once as the library would: every request
  to a host has to be paced.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from multidict import CIMultiDict
from yarl import URL

from common.model.job import JobSpec
from common.runtime.request_secrets import revealed_headers, revealed_proxy
from worker.addresses import is_public
from worker.content_coding import ACCEPT_ENCODING
from worker.fetch_errors import NO_SUCH_NAME, DroppedError, NoAnswerError, PrivateAddressFault

if TYPE_CHECKING:
    from aiohappyeyeballs import AddrInfoType
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection

_MAX_HEADER_BYTES: Final = 65_536
_MAX_HEADERS: Final = 512
_READ_BUFFER_BYTES: Final = 65_536
_KEEP_ALIVE_S: Final = 4.0
"""Below the 5 s after which common servers drop idle connections: few requests meet their end."""
_DNS_TTL_S: Final = 300
_DNS_MISSING_S: Final = 60.0
_DNS_FAILED_S: Final = 1.0
"""How long a name that does not exist, or cannot be looked up for now, is not asked for again."""
_NEVER: Final = (0.0, OSError())
_MAX_COOKIE_CHARS: Final = 8192
_DNS_NAMES: Final = 10_000
_DNS_THREADS: Final = 16
_ACCEPT: Final = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
_NOTES: Final = "crawlctl_notes"


class Answer(aiohttp.ClientResponse):
    """A response that remembers its connection; the library forgets it once the body is read."""

    ip: str | None = None
    wire: ResponseHandler | None = None
    sent_at: float = 0.0
    """When the request was handed to its connection (monotonic)."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Wait for the response header.

        Raises:
            DroppedError: the connection ended before any response.
            NoAnswerError: the time was up before any response.
        """
        self.sent_at = time.monotonic()
        wire = connection.protocol
        assert wire is not None
        self.wire = wire
        known: _Wire | None = getattr(wire, _NOTES, None)
        notes = known or _Wire(wire)
        self.ip = notes.ip
        try:
            await super().start(connection)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            raise DroppedError(error, reused=known is not None) from error
        except TimeoutError as error:
            raise NoAnswerError from error
        notes.content = self.content
        return self

    def has_failed(self) -> bool:
        """Tell whether the connection ended by a fault and not by being closed."""
        return self.wire is not None and isinstance(self.wire.exception(), aiohttp.ClientOSError)


class _Wire:
    """What is to be known of one connection, for as long as the library keeps it."""

    __slots__ = ("content", "ip")

    def __init__(self, wire: ResponseHandler) -> None:
        peer = None if wire.transport is None else wire.transport.get_extra_info("peername")
        self.ip: str | None = str(peer[0]) if peer else None
        self.content: aiohttp.StreamReader | None = None
        setattr(wire, _NOTES, self)
        if (closed := wire.closed) is not None:
            closed.add_done_callback(lambda done: self._tell_reader(done, wire))

    def _tell_reader(self, closed: asyncio.Future[None], wire: ResponseHandler) -> None:
        """End a body the library does not end: one with malformed framing later than its header."""
        if not closed.cancelled():
            closed.exception()  # taken note of: nobody else asks
        content = self.content
        if content is not None and not content.is_eof() and content.exception() is None:
            fault = wire.exception()
            content.set_exception(aiohttp.ClientPayloadError(getattr(fault, "message", str(fault))))


class _CookieJar(aiohttp.CookieJar):
    """Keeps no cookie larger than browsers do; the library bounds how many there are."""

    def update_cookies_from_headers(self, headers: Sequence[str], response_url: URL) -> None:
        kept = [field for field in headers if len(field) <= _MAX_COOKIE_CHARS]
        if kept:
            super().update_cookies_from_headers(kept, response_url)


class _Resolver(AbstractResolver):
    """Looks names up, and remembers for a while which do not exist: the library forgets these."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_DNS_THREADS, thread_name_prefix="dns")
        self._missing: dict[tuple[str, int], tuple[float, OSError]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        if host.rstrip(".").endswith(".invalid"):  # there are none, by RFC 6761
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        until, error = self._missing.get((host, family), _NEVER)
        if until > time.monotonic():
            raise socket.gaierror(error.errno, error.strerror)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._threads, _look_up, host, port, family)
        except OSError as failure:
            if len(self._missing) >= _DNS_NAMES:
                self._missing.clear()
            wait_s = _DNS_MISSING_S if failure.errno in NO_SUCH_NAME else _DNS_FAILED_S
            self._missing[host, family] = (time.monotonic() + wait_s, failure)
            raise
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=0)
            for kind, address in found
        ]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def open_session(spec: JobSpec, *, connections: int) -> aiohttp.ClientSession:
    """Return a session that sends what the job's hosts may all see.

    Raises:
        UsageError: the job's proxy is malformed, or a secret it refers to is missing here.
    """
    address = revealed_proxy(spec)
    is_socks = address is not None and address.startswith("socks")
    proxy = None if address is None or is_socks else URL(address)
    accept = ", ".join(pattern.strip() for pattern in spec.accept)
    connect_s = min(spec.connect_timeout, spec.timeout)
    return aiohttp.ClientSession(
        connector=_connector(spec, address, connections=connections),
        cookie_jar=_CookieJar(unsafe=True, quote_cookie=False),
        headers={
            "User-Agent": spec.user_agent,
            "Accept": accept or _ACCEPT,
            "Accept-Encoding": ACCEPT_ENCODING,
        },
        timeout=aiohttp.ClientTimeout(
            total=spec.timeout, connect=connect_s, sock_connect=connect_s
        ),
        proxy=proxy,
        trust_env=False,
        auto_decompress=False,
        requote_redirect_url=False,
        response_class=Answer,
        read_bufsize=_READ_BUFFER_BYTES,
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
        max_headers=_MAX_HEADERS,
    )


def _connector(spec: JobSpec, proxy: str | None, *, connections: int) -> aiohttp.TCPConnector:
    pool: dict[str, Any] = {
        "limit": connections,
        "limit_per_host": spec.per_host,
        "keepalive_timeout": _KEEP_ALIVE_S,
    }
    if proxy is not None and proxy.startswith("socks"):
        from aiohttp_socks import ProxyConnector  # noqa: PLC0415 - few jobs need it

        plain = proxy.replace("socks5h://", "socks5://")
        connector: aiohttp.TCPConnector = ProxyConnector.from_url(plain, rdns=True, **pool)
        return connector
    return aiohttp.TCPConnector(
        **pool,
        ttl_dns_cache=_DNS_TTL_S,
        dns_cache_max_size=_DNS_NAMES,
        resolver=_Resolver(),
        # The user's own proxy may well have a private address.
        socket_factory=None if proxy or spec.allow_private else _public_socket,
    )


def trusted_headers(spec: JobSpec) -> CIMultiDict[str] | None:
    """Return the headers, cookies among them, that only the seeds' hosts may see; None for none.

    Raises:
        UsageError: one is malformed, or a secret it refers to is missing here.
    """
    return CIMultiDict(revealed_headers(spec)) or None


def _public_socket(addr_info: AddrInfoType) -> socket.socket:
    family, kind, protocol, _, address = addr_info
    if not is_public(str(address[0])):
        raise PrivateAddressFault
    return socket.socket(family, kind, protocol)


def _look_up(
    host: str, port: int, family: socket.AddressFamily
) -> list[tuple[socket.AddressFamily, str]]:
    # Bytes keep Python's own IDNA rules out: the host of a canonical URL is ASCII already.
    found = socket.getaddrinfo(
        host.encode("ascii"), port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
    )
    return [(kind, str(address[0])) for kind, _, _, _, address in found]
