"""Connections to the Redis or Valkey server, each bound to the server run it was opened on.

A TCP connection cannot outlive the server process, so the run id read when it was opened is the run
id of whatever answers on it. Scripts are told that id and compare it with the one their shard was
adopted under (design rule P6); no command of ours ever runs on a run it does not know.
Not promised: Redis Cluster; that comes with the frontier's own work.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hiredis
from redis.asyncio import Connection, SSLConnection
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from common.frontier import scripts
from common.frontier.clock import ServerClock
from common.frontier.keys import FSYNC, NO_META
from common.frontier.scripts import BORN, LAYOUT_VERSION, RUN, Call
from common.frontier.server import (
    Durability,
    ServerInfo,
    parse_info,
    server_info,
    with_remedy,
)
from common.model.errors import FrontierUnavailable, ScriptBug, SettingsError

if TYPE_CHECKING:
    from common.runtime.settings import Settings

CALL_TIMEOUT_S = 10.0
CONNECTIONS = 32
"""Calls of one process under way at once. Those that come to the server together share one sync of
its log to the disk, which costs more than all of them."""
HORIZON_S = 4.0
"""With AOF everysec, how long after its acknowledgement a sync of a write has surely begun: it may
be held back for two seconds, and the next sync begins a second (by a coarse clock) later."""
WAIT_S = 8.0
"""How long the server may take to sync its log; below CALL_TIMEOUT_S."""
OLDEST_VERSION = (6, 2)
_REFUSING = (ClusterDownError, MasterDownError, OutOfMemoryError, ReadOnlyError)
_REFUSING_CODES = ("BUSY ", "LOADING ", "MISCONF ", "NOREPLICAS ", "OOM ", "READONLY ")
"""As they stand where the driver has no class for them, or in a script's error before Redis 7."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisOptions:
    """Where the data server is and how to speak with it."""

    urls: tuple[str, ...]
    cacert: str | None = None
    cert: str | None = None
    key: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> RedisOptions:
        """Return what the settings of a process say of the data server."""
        return cls(
            urls=settings.redis_urls,
            cacert=settings.redis_cacert,
            cert=settings.redis_cert,
            key=settings.redis_key,
        )


class _Link:
    """One connection and the server run behind it."""

    __slots__ = ("born_ms", "cannot_wait", "connection", "durability", "run_id", "strict")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.run_id = ""
        self.born_ms = 0
        """When the server began, by its own clock; 0 where a restart of it loses nothing."""
        self.strict = False
        self.durability = Durability.AT_ONCE
        self.cannot_wait = False
        """The server is too old to be asked when its log is synced."""

    def filled(self, arg: str | bytes | int) -> str | bytes | int:
        """Return an argument of a call, placeholders replaced."""
        if arg is RUN:
            return self.run_id
        return self.born_ms if arg is BORN else arg


class FrontierClient:
    """A few connections to one server; calls are pipelines of scripts or plain commands."""

    def __init__(self, options: RedisOptions) -> None:
        if len(options.urls) != 1:
            raise SettingsError("--redis: give exactly one URL; Redis Cluster is not supported yet")
        self._options = options
        try:
            settings: dict[str, Any] = dict(parse_url(options.urls[0]))
        except ValueError as error:
            raise SettingsError(
                f"--redis: {_without_password(options.urls[0])!r} is not a Redis URL ({error}); "
                "expected redis://[:password@]host:port/db"
            ) from error
        self.endpoint = f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"
        self._class: type[Connection] = settings.pop("connection_class", Connection)
        self._settings = settings | self._tls(settings)
        self._idle: list[_Link] = []
        self._gate = asyncio.Semaphore(CONNECTIONS)
        self._closed = False
        self._loaded_run = ""
        """The server run that was given the scripts; one that lost them is given them singly."""
        self.run_id = ""
        """Run id of the server that answered last."""
        self.is_durable = False
        """Whether that server keeps whatever it has acknowledged."""
        self.clock = ServerClock()

    def _tls(self, settings: dict[str, Any]) -> dict[str, Any]:
        options = self._options
        if not issubclass(self._class, SSLConnection):
            return {}
        for name in ("cacert", "cert", "key"):
            path = getattr(options, name)
            if path is not None and not os.access(path, os.R_OK):
                raise SettingsError(f"--redis-{name}: {path} cannot be read")
        return {
            "ssl_ca_certs": options.cacert or settings.get("ssl_ca_certs"),
            "ssl_certfile": options.cert,
            "ssl_keyfile": options.key,
            "ssl_min_version": ssl.TLSVersion.TLSv1_2,
        }

    async def open(self, *, timeout_s: float = 3.0) -> None:
        """Connect once, and check that the server can hold a frontier; else close again.

        Raises:
            FrontierUnavailable: no answer within ``timeout_s`` seconds.
            SettingsError: wrong password, too old a server, or one that evicts keys.
        """
        try:
            async with asyncio.timeout(timeout_s):
                self._check_server(await self.info())
        except TimeoutError as error:
            await self.close()
            raise FrontierUnavailable(
                f"Redis at {self.endpoint} did not answer within {timeout_s:g} s; is it running?"
            ) from error
        except BaseException:
            await self.close()
            raise

    def _check_server(self, info: ServerInfo) -> None:
        if tuple(int(part) for part in info.version.split(".")[:2]) < OLDEST_VERSION:
            raise SettingsError(
                f"--redis: the server at {self.endpoint} is {info.version}; 6.2 is needed"
            )
        if info.eviction != "noeviction":
            raise SettingsError(
                f"--redis: the server at {self.endpoint} may evict keys (maxmemory-policy "
                f"{info.eviction}); set it to noeviction, or URLs would be lost"
            )

    async def close(self) -> None:
        """Close every connection; calls under way fail."""
        self._closed = True
        await self._drop_idle()

    async def call(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts in one round trip; one reply each, in order.

        Raises:
            FrontierUnavailable: no answer, or the server takes no writes for now. Any of the calls
                may have run: each is safe to repeat, but a claim's reply must then be recovered.
            ScriptBug: a script failed.
        """
        async with self._link() as link:
            if any(one.run not in ("", link.run_id) for one in calls):
                return [[b"RUN"] for _ in calls]
            loaded = scripts.load(strict=link.strict)
            packed = [
                (
                    "EVALSHA",
                    loaded[one.script].sha,
                    len(one.keys),
                    *one.keys,
                    *map(link.filled, one.args),
                )
                for one in calls
            ]
            replies = await self._exchange(link, packed)
            for at, reply in enumerate(replies):
                if isinstance(reply, NoScriptError):
                    source = loaded[calls[at].script].source
                    (replies[at],) = await self._exchange(link, [("EVAL", source, *packed[at][2:])])
            for one, reply in zip(calls, replies, strict=True):
                self._check(reply, f"script {one.script}")
            return replies

    async def commands(
        self, commands: Sequence[tuple[str | bytes | int | float, ...]]
    ) -> list[Any]:
        """Run plain commands in one round trip.

        Raises:
            FrontierUnavailable: as for :meth:`call`.
        """
        async with self._link() as link:
            replies = await self._exchange(link, commands)
            for command, reply in zip(commands, replies, strict=True):
                self._check(reply, str(command[0]))
            return replies

    async def current_run(self) -> str:
        """Return the run id of the server that answers now."""
        async with self._link() as link:
            (reply,) = await self._exchange(link, [("PING",)])
            self._check(reply, "PING")
            return link.run_id

    async def probe(self) -> None:
        """Find out whether the server lets scripts write now; changes nothing.

        Raises:
            FrontierUnavailable: it does not, or it does not answer; says why.
        """
        await self.call([Call("grant", [NO_META], [LAYOUT_VERSION, 0, 0, 0, ""])])

    async def wait_durable(self) -> None:
        """Return once the server keeps all that it has acknowledged to anyone before this call.

        At once where each write is on disk when it is acknowledged (AOF always), or where nothing
        ever is (no AOF: then no promise holds over a crash). With AOF everysec it takes a second or
        two with a server that can be asked (Valkey, Redis 7.2), and :data:`HORIZON_S` with others.
        The server may have been restarted meanwhile and have lost it: compare the runs.

        Raises:
            FrontierUnavailable: no answer, or the log could not be written.
        """
        async with self._link() as link:
            if link.durability is not Durability.DELAYED:
                return
            if not link.cannot_wait:
                self._check((await self._exchange(link, [("SET", FSYNC, 1)]))[0], "SET")
                ask = ("WAITAOF", 1, 0, int(WAIT_S * 1000))
                (answer,) = await self._exchange(link, [ask])
                if not isinstance(answer, RedisError):
                    if answer[0] < 1:
                        raise FrontierUnavailable(
                            f"Redis at {self.endpoint} did not sync its log within {WAIT_S:g} s"
                        )
                    return
                link.cannot_wait = True
        await self._wait_horizon()

    async def _wait_horizon(self) -> None:
        """Wait until any fsync that was due by now has been begun, and has ended."""
        await asyncio.sleep(HORIZON_S)
        deadline = time.monotonic() + WAIT_S
        while True:
            async with self._link() as link:
                (raw,) = await self._exchange(link, [("INFO", "persistence")])
                self._check(raw, "INFO")
            facts = parse_info(raw)
            is_behind = facts.get("aof_pending_bio_fsync", "0") != "0"
            if facts.get("aof_last_write_status", "ok") == "ok" and not is_behind:
                return
            if time.monotonic() > deadline:
                raise FrontierUnavailable(
                    f"Redis at {self.endpoint} did not sync its log within {WAIT_S:g} s"
                )
            await asyncio.sleep(0.02)

    async def info(self) -> ServerInfo:
        """Return what the server says of itself."""
        async with self._link() as link:
            return await self._info(link)

    async def _info(self, link: _Link) -> ServerInfo:
        commands = [("INFO",), ("TIME",), ("CONFIG", "GET", "appendfsync")]
        raw, clock, fsync = await self._exchange(link, commands)
        self._check(raw, "INFO")
        self._check(clock, "TIME")
        # CONFIG is often forbidden on hosted servers: unknown, not an error.
        is_told = not isinstance(fsync, RedisError) and bool(fsync)
        return server_info(raw, clock=clock, appendfsync=fsync[1].decode() if is_told else None)

    def _check(self, reply: object, what: str) -> None:
        if not isinstance(reply, RedisError):
            return
        text = str(reply)
        if isinstance(reply, _REFUSING) or any(code in text for code in _REFUSING_CODES):
            raise FrontierUnavailable(
                f"Redis at {self.endpoint} refuses writes for now: {with_remedy(text)}"
            ) from reply
        if isinstance(reply, NoPermissionError):
            raise SettingsError(
                f"--redis: {self.endpoint} does not let this user run {what}: {text}"
            ) from reply
        raise ScriptBug(f"Redis at {self.endpoint}: {what} failed: {text}") from reply

    async def _exchange(self, link: _Link, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        connection = link.connection
        async with asyncio.timeout(CALL_TIMEOUT_S):
            # The library packs commands in Python; offers and commits have thousands of arguments.
            await connection.send_packed_command(b"".join(map(hiredis.pack_command, commands)))
            replies: list[Any] = []
            for _ in commands:
                try:
                    replies.append(await connection.read_response(disable_decoding=True))
                except ResponseError as error:
                    replies.append(error)
        return replies

    @asynccontextmanager
    async def _link(self) -> AsyncIterator[_Link]:
        async with self._gate:
            try:
                link = self._idle.pop() if self._idle else await self._connect()
                whole = False
                try:
                    yield link
                    whole = True
                except (ScriptBug, FrontierUnavailable):
                    whole = True  # replies were read to the end: the connection is in step
                    raise
                finally:
                    if whole and not self._closed:
                        self._idle.append(link)
                    else:
                        await link.connection.disconnect(nowait=True)
            except AuthenticationError as error:
                raise SettingsError(
                    f"--redis: {self.endpoint} refused the credentials: {error}"
                ) from error
            except InvalidResponse as error:
                await self._drop_idle()
                raise FrontierUnavailable(
                    f"--redis: {self.endpoint} does not answer like a Redis server; check the port"
                ) from error
            except BusyLoadingError as error:
                await self._drop_idle()
                raise FrontierUnavailable(
                    f"Redis at {self.endpoint} was restarted and is still loading its data"
                ) from error
            except (RedisConnectionError, RedisTimeoutError, TimeoutError, OSError) as error:
                await self._drop_idle()
                raise FrontierUnavailable(
                    f"Redis at {self.endpoint} is unreachable: {str(error) or 'no answer in time'}"
                ) from error

    async def _drop_idle(self) -> None:
        # They lead to the same server: when one fails the others are most likely dead as well.
        links, self._idle = self._idle, []
        for link in links:
            await link.connection.disconnect(nowait=True)

    async def _connect(self) -> _Link:
        connection = self._class(
            **self._settings,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=CALL_TIMEOUT_S,
            # Our own timeouts bound every exchange. The library's writes go through wait_for, which
            # on Python 3.11 swallows a cancellation that comes as the write completes.
            socket_timeout=None,
        )
        link = _Link(connection)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await connection.connect()  # type: ignore[no-untyped-call]
            info = await self._info(link)
            link.run_id = info.run_id
            link.durability = info.durability
            link.born_ms = 0 if info.is_durable else int((info.clock_s - info.uptime_s) * 1000)
            link.strict = info.is_valkey or int(info.version.split(".")[0]) >= 7
            if info.run_id != self._loaded_run:
                loaded = scripts.load(strict=link.strict)
                for reply in await self._exchange(
                    link, [("SCRIPT", "LOAD", script.source) for script in loaded.values()]
                ):
                    self._check(reply, "SCRIPT LOAD")
                self._loaded_run = info.run_id
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self.run_id = link.run_id
        self.is_durable = info.is_durable
        return link


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"{head.split('://')[0]}://***@{tail}" if at else url
