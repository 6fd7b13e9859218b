"""Names and addresses: looking names up, and choosing one address where addresses are limited.

Names are looked up in threads of our own: the event loop's few would easily all be waiting for one
slow name server.

A job with ``--per-ip`` has to know where a request goes before it is sent. It *chooses* one of the
host's addresses, keeps to it as long as connections to it can be made, and connects nowhere else:
:data:`CHOSEN` says to the HTTP session what was chosen for the request at hand.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aiohttp.abc import AbstractResolver, ResolveResult

from common.model.ids import HostKey
from common.web.url import authority_of
from worker.addresses import is_address, is_public
from worker.fetch_errors import NO_SUCH_NAME

TTL_S: Final = 300
MAX_NAMES: Final = 10_000
FAILED_S: Final = 60.0
"""How long an address to which no connection could be made is the last one to be chosen."""
_MISSING_S: Final = 60.0
_UNKNOWN_S: Final = 1.0
"""How long a name that does not exist, or cannot be looked up for now, is not asked for again."""
_NEVER: Final = (0.0, OSError())
_THREADS: Final = 16


class Choice(NamedTuple):
    """The address chosen for a request, or why there is none."""

    address: str | None
    failure: OSError | None = None
    has_next: bool = False
    """Another address would be chosen, were this one not to be reached."""


CHOSEN: ContextVar[Choice | None] = ContextVar("chosen", default=None)
"""For the request that this task sends; jobs without ``--per-ip`` choose nothing."""


class Resolver(AbstractResolver):
    """Looks names up, and remembers for a while which do not exist: the library forgets these."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="dns")
        self._missing: dict[tuple[str, int], tuple[float, OSError]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a name.

        Raises:
            OSError: it has none, or cannot be looked up.
        """
        found = await self.look_up(host, port, family)
        return [_result(host, address, port, kind) for kind, address in found]

    async def look_up(
        self, host: str, port: int, family: socket.AddressFamily
    ) -> list[tuple[socket.AddressFamily, str]]:
        """Return the addresses of a name, each with its family, the best one first.

        Raises:
            OSError: it has none, or cannot be looked up.
        """
        if host.rstrip(".").endswith(".invalid"):  # there are none, by RFC 6761
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        until, error = self._missing.get((host, family), _NEVER)
        if until > time.monotonic():
            raise socket.gaierror(error.errno, error.strerror)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, _look_up, host, port, family)
        except OSError as failure:
            if len(self._missing) >= MAX_NAMES:
                self._missing.clear()
            wait_s = _MISSING_S if failure.errno in NO_SUCH_NAME else _UNKNOWN_S
            self._missing[host, family] = (time.monotonic() + wait_s, failure)
            raise

    async def close(self) -> None:
        """Look nothing up any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class ChosenResolver(AbstractResolver):
    """Leads every request to the address chosen for it, and to no other."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the chosen address.

        Raises:
            OSError: there was none to choose from.
        """
        chosen = CHOSEN.get()
        assert chosen is not None, "a request is sent for which no address was chosen"
        if chosen.address is None:
            raise chosen.failure or OSError("no address")
        kind = socket.AF_INET6 if ":" in chosen.address else socket.AF_INET
        assert family in (socket.AF_UNSPEC, kind)
        return [_result(host, chosen.address, port, kind)]

    async def close(self) -> None:
        """Nothing is held."""


@dataclass(slots=True)
class _Name:
    addresses: Sequence[str]
    """In the order in which they are to be tried."""
    until: float
    failed: dict[str, float] = field(default_factory=dict)
    """Until when each is avoided (monotonic)."""

    def has_any(self, now: float, *, but: str = "") -> bool:
        """Tell whether an address is not avoided now."""
        return any(one != but and self.failed.get(one, 0.0) <= now for one in self.addresses)


class Addresses:
    """Which address the requests of a job to each host go to."""

    def __init__(self, resolver: Resolver, *, allow_private: bool, wait_s: float) -> None:
        """Prepare.

        Args:
            resolver: looks names up.
            allow_private: whether addresses that are not public may be chosen where others are.
            wait_s: for a look-up, at most.
        """
        self._resolver = resolver
        self._allow_private = allow_private
        self._wait_s = wait_s
        self._names: dict[str, _Name] = {}
        self._looking: dict[str, asyncio.Task[_Name]] = {}

    async def choose(self, host: HostKey, *, within_s: float) -> Choice:
        """Return the address for the next request to a host.

        It stays the same for some minutes, unless no connection can be made to it. A look-up that
        takes longer than there is time is a failure now, and of use to whoever asks later.
        """
        name = _name_of(host)
        if is_address(name):
            return Choice(name)
        known = self._names.get(name)
        if known is None or known.until < time.monotonic():
            try:
                async with asyncio.timeout(min(within_s, self._wait_s)):
                    known = await self._look_up(name)
            except OSError as failure:  # TimeoutError is one
                return Choice(None, failure)
        now = time.monotonic()
        first = min(known.addresses, key=lambda one: max(now, known.failed.get(one, 0.0)))
        return Choice(first, has_next=known.has_any(now, but=first))

    def failed(self, host: HostKey, choice: Choice) -> bool:
        """Note that no connection could be made; tell whether another address is left to try."""
        known = self._names.get(_name_of(host))
        if known is None or choice.address is None:
            return False
        now = time.monotonic()
        known.failed[choice.address] = now + FAILED_S
        return known.has_any(now)

    async def _look_up(self, name: str) -> _Name:
        """Look a name up, once for all who ask for it; who is cancelled does not end it."""
        looking = self._looking.get(name)
        if looking is None:
            looking = self._looking[name] = asyncio.create_task(self._ask(name))
            looking.add_done_callback(lambda done: self._looked(name, done))
        return await asyncio.shield(looking)

    def _looked(self, name: str, done: asyncio.Task[_Name]) -> None:
        del self._looking[name]
        if not done.cancelled():
            done.exception()  # taken note of: those who wait have it, if there are any left

    async def _ask(self, name: str) -> _Name:
        found = [one for _, one in await self._resolver.look_up(name, 0, socket.AF_UNSPEC)]
        usable = list(dict.fromkeys(found if self._allow_private else filter(is_public, found)))
        usable = usable or found  # so that the connection is refused, and the error says why
        if not usable:
            raise socket.gaierror(socket.EAI_NONAME, "the name has no address")
        first = random.randrange(len(usable))  # noqa: S311 - spreads jobs and workers over them
        if len(self._names) >= MAX_NAMES:
            self._names.pop(next(iter(self._names)))
        known = _Name(usable[first:] + usable[:first], time.monotonic() + TTL_S)
        self._names[name] = known
        return known


class Route:
    """The address that the requests of one visit to a host go to."""

    def __init__(self, addresses: Addresses, host: HostKey) -> None:
        self._addresses = addresses
        self._host = host
        self.choice: Choice | None = None
        """For the next request."""

    @property
    def has_next(self) -> bool:
        """Whether another address is left, were the chosen one not to be reached."""
        return self.choice is not None and self.choice.has_next

    async def choose(self, *, within_s: float) -> Choice:
        """Choose the address for the next request."""
        self.choice = await self._addresses.choose(self._host, within_s=within_s)
        return self.choice

    def failed(self) -> bool:
        """Note that no connection could be made; tell whether another address is left to try."""
        return self.choice is not None and self._addresses.failed(self._host, self.choice)


def _name_of(host: HostKey) -> str:
    """Return the name, or the address, without port and brackets."""
    authority = authority_of(f"{host}/")
    if authority.startswith("["):
        return authority[1 : authority.index("]")]
    return authority.partition(":")[0]


def _result(host: str, address: str, port: int, kind: socket.AddressFamily) -> ResolveResult:
    return ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=0)


def _look_up(
    host: str, port: int, family: socket.AddressFamily
) -> list[tuple[socket.AddressFamily, str]]:
    # Bytes keep Python's own IDNA rules out: the host of a canonical URL is ASCII already.
    found = socket.getaddrinfo(
        host.encode("ascii"), port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
    )
    return [(kind, str(address[0])) for kind, _, _, _, address in found]
