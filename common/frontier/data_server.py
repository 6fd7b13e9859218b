"""Connections to one Redis or Valkey server, each bound to the server run it was opened on.

A TCP connection cannot outlive the server process, so the run id read when it was opened is the run
id of whatever answers on it. Scripts are told that id and compare it with the one their shard was
adopted under (design rule P6); no command of ours ever runs on a run it does not know.

A node of a Redis Cluster answers MOVED where it does not serve the keys: nothing was done then, and
the error stands among the replies, for the client that knows the other nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    InvalidResponse,
    MovedError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from common.frontier import scripts
from common.frontier.addresses import Address
from common.frontier.clock import ServerClock
from common.frontier.durable import Durable
from common.frontier.keys import no_meta_key
from common.frontier.link import CALL_TIMEOUT_S, Link, SlotMoving
from common.frontier.pipeline import Answer, Pipeline, Take
from common.frontier.scripts import LAYOUT_VERSION, Call
from common.frontier.server import (
    ServerInfo,
    server_info,
)
from common.model.errors import FrontierUnavailable, ScriptBug, SettingsError

CONNECTIONS = 32
"""Calls of one process under way at once. Those that come to the server together share one sync of
its log to the disk, which costs more than all of them."""
_LOADS = 3
"""So often scripts are sent anew, where somebody flushes them all the time."""


class DataServer:
    """A few connections to one server; calls are pipelines of scripts or plain commands."""

    def __init__(self, address: Address, *, in_cluster: bool = False) -> None:
        self.address = address
        self.endpoint = address.endpoint
        self._in_cluster = in_cluster
        self._idle: list[Link] = []
        self._pipeline = Pipeline(self._send, most=CONNECTIONS)
        self._gate = asyncio.Semaphore(CONNECTIONS)
        self._closed = False
        self._loaded_run = ""
        """The server run that was given the scripts; one that lost them is given them singly."""
        self._born: tuple[str, int] = ("", 0)
        self.durable = Durable(self)
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
        await self.durable.close()
        await self._pipeline.close()
        await self._drop_idle()

    async def call(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts in one round trip, which others may share; one reply each, in order.

        A reply may be MOVED (a ``MovedError``).

        Raises:
            FrontierUnavailable: no answer, or the server does not take them for now. Any of the
                calls may have run: each is safe to repeat, but a claim's reply must be recovered.
            ScriptBug: a script failed.
        """
        return await self._pipeline.call(calls)

    async def _send(self, take: Take) -> list[Answer]:
        """Run the calls of several callers in one round trip; an answer to each.

        Args:
            take: gives them, once they can be sent.
        """
        async with self.link() as link:
            if link.run_id != self._loaded_run:
                await self._load(link)
            groups = take()
            packed = [link.packed(group) for group in groups]
            sent = [one for some in packed if not isinstance(some, Exception) for one in some]
            replies = iter(await self._replies(link, sent))
            return [
                some if isinstance(some, Exception)
                else link.checked(group, [next(replies) for _ in some])
                for group, some in zip(groups, packed, strict=True)
            ]  # fmt: skip

    async def _replies(self, link: Link, sent: Sequence[bytes]) -> list[Any]:
        """Return the replies to calls; scripts that the server has lost are sent anew before."""
        replies = await link.exchange_packed(sent)
        for _ in range(_LOADS):
            missing = [at for at, one in enumerate(replies) if isinstance(one, NoScriptError)]
            if not missing:
                break
            await self._load(link)
            again = await link.exchange_packed([sent[at] for at in missing])
            for at, reply in zip(missing, again, strict=True):
                replies[at] = reply
        return replies

    async def _load(self, link: Link) -> None:
        """Send the scripts to a server run that does not have them."""
        loaded = scripts.load(strict=link.strict)
        for reply in await link.exchange(
            [("SCRIPT", "LOAD", script.source) for script in loaded.values()]
        ):
            link.check(reply, "SCRIPT LOAD")
        self._loaded_run = link.run_id

    async def commands(
        self, commands: Sequence[tuple[str | bytes | int | float, ...]]
    ) -> list[Any]:
        """Run plain commands in one round trip.

        A reply may be MOVED (a ``MovedError``).

        Raises:
            FrontierUnavailable: as for :meth:`call`.
        """
        async with self.link() as link:
            replies = await link.exchange(commands)
            for command, reply in zip(commands, replies, strict=True):
                link.check(reply, str(command[0]))
            return replies

    async def runs(self, keys: Sequence[str]) -> list[Any]:
        """Return for each key the run id of the server that answers now, if it serves the key.

        One may be MOVED (a ``MovedError``).

        Raises:
            FrontierUnavailable: as for :meth:`call`.
        """
        async with self.link() as link:
            asked = [("EXISTS", key) for key in keys] if self._in_cluster else [("PING",)]
            replies = await link.exchange(asked)
            for reply in replies:
                link.check(reply, "EXISTS")
            if not self._in_cluster:
                return [link.run_id] * len(keys)
            return [one if isinstance(one, MovedError) else link.run_id for one in replies]

    async def probe(self) -> None:
        """Find out whether the server lets scripts write now; changes nothing.

        Raises:
            FrontierUnavailable: it does not, or it does not answer; says why.
        """
        await self.on_own_key(
            lambda tag: self.call(
                [Call("grant", [no_meta_key(tag)], [LAYOUT_VERSION, 0, 0, 0, ""])]
            )
        )

    async def on_own_key(self, act: Callable[[str], Awaitable[list[Any]]]) -> None:
        """Do something with a key of this node, in the first of its slots that is not moved.

        Args:
            act: does it under the hash tag it is given; returns one reply.

        Raises:
            FrontierUnavailable: all of these slots are moved, or what ``act`` raises.
        """
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

    async def info(self) -> ServerInfo:
        """Return what the server says of itself."""
        async with self.link() as link:
            return await self._info(link)

    async def _info(self, link: Link) -> ServerInfo:
        commands = [("INFO",), ("TIME",), ("CONFIG", "GET", "appendfsync")]
        raw, clock, fsync = await link.exchange(commands)
        link.check(raw, "INFO")
        link.check(clock, "TIME")
        # CONFIG is often forbidden on hosted servers: unknown, not an error.
        is_told = not isinstance(fsync, RedisError) and bool(fsync)
        return server_info(raw, clock=clock, appendfsync=fsync[1].decode() if is_told else None)

    @asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        """Have a connection for oneself, an idle or a new one.

        Raises:
            FrontierUnavailable: there is no connection, or it breaks meanwhile.
            SettingsError: the server refuses us, whenever it is asked.
        """
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

    async def _connect(self) -> Link:
        connection = self.address.kind(
            **self.address.settings,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=CALL_TIMEOUT_S,
            # Our own timeouts bound every exchange. The library's writes go through wait_for, which
            # on Python 3.11 swallows a cancellation that comes as the write completes.
            socket_timeout=None,
        )
        link = Link(connection, endpoint=self.endpoint)
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
