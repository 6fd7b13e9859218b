"""Connections to one Redis or Valkey server, each bound to the server run it was opened on.

A TCP connection cannot outlive the server process, so the run id read when it was opened is the run
id of whatever answers on it. Scripts are told that id and compare it with the one their shard was
adopted under (design rule P6); no command of ours ever runs on a run it does not know.

A node of a Redis Cluster answers MOVED where it does not serve the keys: nothing was done then, and
the error stands among the replies, for the client that knows the other nodes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import hiredis
from redis.asyncio import Connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from common.frontier import scripts
from common.frontier.addresses import Address
from common.frontier.barrier import Barrier
from common.frontier.clock import ServerClock
from common.frontier.keys import fsync_key, no_meta_key
from common.frontier.scripts import BORN, LAYOUT_VERSION, RUN, Call
from common.frontier.server import (
    Durability,
    ServerInfo,
    parse_info,
    server_info,
    with_remedy,
)
from common.model.errors import FrontierUnavailable, ScriptBug, SettingsError

CALL_TIMEOUT_S = 10.0
CONNECTIONS = 32
"""Calls of one process under way at once. Those that come to the server together share one sync of
its log to the disk, which costs more than all of them."""
HORIZON_S = 4.0
"""With AOF everysec, how long after its acknowledgement a sync of a write has surely begun: it may
be held back for two seconds, and the next sync begins a second (by a coarse clock) later."""
WAIT_S = 8.0
"""How long the server may take to sync its log; below CALL_TIMEOUT_S."""
ACKNOWLEDGE_S = 4.0
"""How long a replica may take to acknowledge what its master has."""
OLDEST_VERSION = (6, 2)
_REFUSING = (ClusterDownError, MasterDownError, OutOfMemoryError, ReadOnlyError)
_REFUSING_CODES = ("BUSY ", "LOADING ", "MISCONF ", "NOREPLICAS ", "OOM ", "READONLY ")
"""As they stand where the driver has no class for them, or in a script's error before Redis 7."""


class SlotMoving(FrontierUnavailable):
    """The keys are on their way to another node of the cluster; nothing was done."""


class _Link:
    """One connection and the server run behind it."""

    __slots__ = (
        "born_ms", "cannot_wait", "connection", "durability", "replicas", "run_id", "strict",
    )  # fmt: skip

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.run_id = ""
        self.born_ms = 0
        """When the server began, by its own clock; 0 where a restart of it loses nothing."""
        self.strict = False
        self.durability = Durability.AT_ONCE
        self.replicas = 0
        self.cannot_wait = False
        """The server is too old to be asked when its log is synced."""

    def filled(self, arg: str | bytes | int) -> str | bytes | int:
        """Return an argument of a call, placeholders replaced."""
        if arg is RUN:
            return self.run_id
        return self.born_ms if arg is BORN else arg


class DataServer:
    """A few connections to one server; calls are pipelines of scripts or plain commands."""

    def __init__(self, address: Address, *, in_cluster: bool = False) -> None:
        self.address = address
        self.endpoint = address.endpoint
        self._in_cluster = in_cluster
        self._idle: list[_Link] = []
        self._gate = asyncio.Semaphore(CONNECTIONS)
        self._closed = False
        self._loaded_run = ""
        """The server run that was given the scripts; one that lost them is given them singly."""
        self._born: tuple[str, int] = ("", 0)
        self._durable = Barrier(self._keep)
        self.run_id = ""
        """Run id of the server that answered last."""
        self.is_durable = False
        """Whether that server keeps whatever it has acknowledged. Never said of a cluster's node: a
        shard that is met there under another run may come from one that was lost."""
        self.clock = ServerClock()
        self.tags: tuple[str, ...] = ("",)
        """Hash tags of keys that lie here: of more slots than one, since one may be on the move."""
        self.replicas = 0
        """Replicas that the cluster gives it; any of them may take over."""

    async def close(self) -> None:
        """Close every connection; calls under way fail."""
        self._closed = True
        await self._durable.close()
        await self._drop_idle()

    async def call(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts in one round trip; one reply each, in order.

        A reply may be MOVED (a ``MovedError``).

        Raises:
            FrontierUnavailable: no answer, or the server does not take them for now. Any of the
                calls may have run: each is safe to repeat, but a claim's reply must be recovered.
            ScriptBug: a script failed.
        """
        async with self._link() as link:
            if any(one.run not in ("", link.run_id) for one in calls):
                return [[b"RUN"] for _ in calls]
            loaded = scripts.load(strict=link.strict)
            if link.run_id != self._loaded_run:
                sources = [("SCRIPT", "LOAD", script.source) for script in loaded.values()]
                for reply in await self._exchange(link, sources):
                    self._check(reply, "SCRIPT LOAD")
                self._loaded_run = link.run_id
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

        A reply may be MOVED (a ``MovedError``).

        Raises:
            FrontierUnavailable: as for :meth:`call`.
        """
        async with self._link() as link:
            replies = await self._exchange(link, commands)
            for command, reply in zip(commands, replies, strict=True):
                self._check(reply, str(command[0]))
            return replies

    async def runs(self, keys: Sequence[str]) -> list[Any]:
        """Return for each key the run id of the server that answers now, if it serves the key.

        One may be MOVED (a ``MovedError``).

        Raises:
            FrontierUnavailable: as for :meth:`call`.
        """
        async with self._link() as link:
            asked = [("EXISTS", key) for key in keys] if self._in_cluster else [("PING",)]
            replies = await self._exchange(link, asked)
            for reply in replies:
                self._check(reply, "EXISTS")
            if not self._in_cluster:
                return [link.run_id] * len(keys)
            return [one if isinstance(one, MovedError) else link.run_id for one in replies]

    async def probe(self) -> None:
        """Find out whether the server lets scripts write now; changes nothing.

        Raises:
            FrontierUnavailable: it does not, or it does not answer; says why.
        """
        await self._on_own_key(
            lambda tag: self.call(
                [Call("grant", [no_meta_key(tag)], [LAYOUT_VERSION, 0, 0, 0, ""])]
            )
        )

    async def wait_durable(self) -> str:
        """Return once the server keeps all that it has acknowledged to anyone before this call.

        Where each write is on disk when it is acknowledged (AOF always), or where nothing ever is
        (no AOF: then no promise holds over a crash), its log is not waited for. With AOF everysec
        it takes a second or two with a server that can be asked (Valkey, Redis 7.2), and
        :data:`HORIZON_S` with others. Where it has replicas, one of them must have it as well.

        Returns:
            The server run that keeps it. What an earlier one acknowledged may be lost: compare.

        Raises:
            FrontierUnavailable: no answer, the log could not be written, or no replica
                acknowledged.
        """
        async with self._link() as link:
            if link.durability is not Durability.DELAYED and not self._replicas(link):
                return link.run_id
        return await self._durable.passed()

    def _replicas(self, link: _Link) -> int:
        return max(link.replicas, self.replicas)

    async def _keep(self) -> str:
        async with self._link() as link:
            is_delayed = link.durability is Durability.DELAYED
            # Something to wait for: whoever has this has all that came before it.
            await self._on_own_key(lambda tag: self._write(link, fsync_key(tag)))
            if self._replicas(link):
                await self._wait_for_a_replica(link)
            if not is_delayed:
                return link.run_id
            if not link.cannot_wait:
                ask = ("WAITAOF", 1, 0, int(WAIT_S * 1000))
                (answer,) = await self._exchange(link, [ask])
                if not isinstance(answer, RedisError):
                    if answer[0] < 1:
                        raise FrontierUnavailable(
                            f"Redis at {self.endpoint} did not sync its log within {WAIT_S:g} s"
                        )
                    return link.run_id
                link.cannot_wait = True
            run = link.run_id
        return run if await self._wait_horizon() == run else ""

    async def _write(self, link: _Link, key: str) -> list[Any]:
        replies = await self._exchange(link, [("SET", key, 1)])
        self._check(replies[0], "SET")
        return replies

    async def _wait_for_a_replica(self, link: _Link) -> None:
        (count,) = await self._exchange(link, [("WAIT", 1, int(ACKNOWLEDGE_S * 1000))])
        self._check(count, "WAIT")
        if count >= 1:
            return
        (raw,) = await self._exchange(link, [("INFO", "replication")])
        self._check(raw, "INFO")
        link.replicas = int(parse_info(raw).get("connected_slaves", 0))
        if self._replicas(link):
            raise FrontierUnavailable(
                f"no replica of Redis at {self.endpoint} acknowledged within {ACKNOWLEDGE_S:g} s, "
                "so that a failover could lose what it has; see the replica's log, or remove it"
            )

    async def _on_own_key(self, act: Callable[[str], Awaitable[list[Any]]]) -> None:
        """Do something with a key of this node, in the first of its slots that is not moved."""
        problem = ""
        for tag in self.tags:
            try:
                (reply,) = await act(tag)
            except SlotMoving as error:
                problem = str(error)
                continue
            if not isinstance(reply, MovedError):
                return
            problem = f"Redis at {self.endpoint} has given slots to another node"
        raise FrontierUnavailable(problem)

    async def _wait_horizon(self) -> str:
        """Wait until any fsync due by now has been begun and has ended; return the run."""
        await asyncio.sleep(HORIZON_S)
        deadline = time.monotonic() + WAIT_S
        while True:
            async with self._link() as link:
                (raw,) = await self._exchange(link, [("INFO", "persistence")])
                self._check(raw, "INFO")
                run = link.run_id
            facts = parse_info(raw)
            is_behind = facts.get("aof_pending_bio_fsync", "0") != "0"
            if facts.get("aof_last_write_status", "ok") == "ok" and not is_behind:
                return run
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
        if not isinstance(reply, RedisError) or isinstance(reply, MovedError):
            return
        text = str(reply)
        if isinstance(reply, AskError | TryAgainError):
            raise SlotMoving(
                f"Redis at {self.endpoint} is moving a slot to another node ({text}); its keys "
                "rest until all of them are there"
            ) from reply
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
            except ResponseError as error:  # to what a new connection begins with
                raise SettingsError(
                    f"--redis: {self.endpoint} refuses the connection: {error}; a Redis Cluster "
                    "has database 0 only, others as many as their setting 'databases' says"
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
        connection = self.address.kind(
            **self.address.settings,
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
            link.replicas = info.replicas
            link.born_ms = self._born_ms(info)
            link.strict = info.is_valkey or int(info.version.split(".")[0]) >= 7
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self.run_id = link.run_id
        self.is_durable = info.is_durable and not self._in_cluster
        return link

    def _born_ms(self, info: ServerInfo) -> int:
        """Return since when the server surely knows all that was acknowledged to anyone."""
        if info.is_durable and not self._in_cluster:
            return 0
        if not info.was_replica:
            return int((info.clock_s - info.uptime_s) * 1000)
        # When it took over is not told: not after this process met it.
        if self._born[0] != info.run_id:
            self._born = info.run_id, int(info.clock_s * 1000)
        return self._born[1]
