"""The HTTP session of one job: connection pool, name look-ups, address checks, headers, cookies.

Only a fetch uses it. Whatever is changed about the HTTP library's own behaviour is here:

* No connection to an address that is not public, unless the job allows it. The check sits where the
  socket for an address is made, so neither redirects nor changing DNS answers get around it.
* Names are looked up by ``worker.dns``; with ``--per-ip`` each request goes to the address chosen
  for it, over a kept connection only if that was opened to this address.
* Connections are ours (``worker.wire``): what comes over one is bounded, and belongs to a request.
* A dropped connection is reported, not tried again at once as the library would: every request
  to a host has to be paced.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import aiohttp
from aiohttp.abc import AbstractResolver
from aiohttp.client_reqrep import ConnectionKey
from multidict import CIMultiDict
from yarl import URL

from common.model.job import JobSpec
from common.runtime.request_secrets import revealed_headers, revealed_proxy
from worker.addresses import is_public
from worker.content_coding import ACCEPT_ENCODING
from worker.dns import CHOSEN, MAX_NAMES, TTL_S
from worker.fetch_errors import DroppedError, NoAnswerError, PrivateAddressFault
from worker.wire import Wire

if TYPE_CHECKING:
    from aiohappyeyeballs import AddrInfoType
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection

_MAX_HEADER_BYTES: Final = 65_536
_MAX_HEADERS: Final = 512
_READ_BUFFER_BYTES: Final = 65_536
_KEEP_ALIVE_S: Final = 4.0
"""Below the 5 s after which common servers drop idle connections: few requests meet their end."""
_MAX_COOKIE_CHARS: Final = 8192
_ACCEPT: Final = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


class Answer(aiohttp.ClientResponse):
    """A response that remembers its connection; the library forgets it once the body is read."""

    ip: str | None = None
    wire: Wire | None = None
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
        assert isinstance(wire, Wire)
        self.wire, self.ip = wire, wire.ip
        try:
            await super().start(connection)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            raise DroppedError(error, reused=wire.exchanges > 1) from error
        except TimeoutError as error:
            raise NoAnswerError from error
        return self

    def has_failed(self) -> bool:
        """Tell whether the connection ended by a fault and not by being closed."""
        return self.wire is not None and isinstance(self.wire.exception(), aiohttp.ClientOSError)


class _CookieJar(aiohttp.CookieJar):
    """Keeps no cookie larger than browsers do; the library bounds how many there are."""

    @classmethod
    def _parse_date(cls, date_str: str) -> int | None:
        """Return Unix time; not 0, which servers send to delete and the library takes for none."""
        found = super()._parse_date(date_str)
        return 1 if found == 0 else found

    def update_cookies_from_headers(self, headers: Sequence[str], response_url: URL) -> None:
        kept = [field for field in headers if len(field) <= _MAX_COOKIE_CHARS]
        if kept:
            super().update_cookies_from_headers(kept, response_url)


class _PinnedRequest(aiohttp.ClientRequest):
    """A request that uses a kept connection only if it goes to the address chosen for it."""

    @property
    def connection_key(self) -> ConnectionKey:
        """Return what a kept connection must have been opened for."""
        chosen = CHOSEN.get()
        key = super().connection_key
        # Here and nowhere else this field tells connections apart; TLS asks the request itself.
        return key._replace(server_hostname=chosen.address if chosen else None)


def open_session(
    spec: JobSpec, *, connections: int, resolver: AbstractResolver
) -> aiohttp.ClientSession:
    """Return a session that sends what the job's hosts may all see.

    Raises:
        UsageError: the job's proxy is malformed, or a secret it refers to is missing here.
    """
    address = revealed_proxy(spec)
    is_socks = address is not None and address.startswith("socks")
    proxy = None if address is None or is_socks else URL(address)
    accept = ", ".join(pattern.strip() for pattern in spec.accept)
    connect_s = min(spec.connect_timeout, spec.timeout)
    connector = _connector(spec, address, connections=connections, resolver=resolver)
    # There is no other way to have connections of one's own class.
    connector._factory = cast("partial[ResponseHandler]", partial(Wire, connector._loop))  # noqa: SLF001
    return aiohttp.ClientSession(
        connector=connector,
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
        request_class=aiohttp.ClientRequest if spec.per_ip is None else _PinnedRequest,
        response_class=Answer,
        read_bufsize=_READ_BUFFER_BYTES,
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
        max_headers=_MAX_HEADERS,
    )


def _connector(
    spec: JobSpec, proxy: str | None, *, connections: int, resolver: AbstractResolver
) -> aiohttp.TCPConnector:
    pool: dict[str, Any] = {
        "limit": connections,
        "limit_per_host": spec.per_host,
        "keepalive_timeout": _KEEP_ALIVE_S,
    }
    if proxy is not None and proxy.startswith("socks"):
        from worker.socks import SocksConnector  # noqa: PLC0415 - few jobs need it

        plain = proxy.replace("socks5h://", "socks5://")
        connector: aiohttp.TCPConnector = SocksConnector.from_url(plain, rdns=True, **pool)
        return connector
    return aiohttp.TCPConnector(
        **pool,
        use_dns_cache=spec.per_ip is None,  # else what was chosen counts, request by request
        ttl_dns_cache=TTL_S,
        dns_cache_max_size=MAX_NAMES,
        resolver=resolver,
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
