"""One connection to a data server, and what is known of the server run behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import hiredis
from redis.asyncio import Connection
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from common.frontier import scripts
from common.frontier.scripts import BORN, RUN, Call
from common.frontier.server import Durability, with_remedy
from common.model.errors import CrawlerError, FrontierUnavailable, ScriptBug, SettingsError

CALL_TIMEOUT_S = 10.0
_REFUSING = (ClusterDownError, MasterDownError, OutOfMemoryError, ReadOnlyError)
_REFUSING_CODES = ("BUSY ", "LOADING ", "MISCONF ", "NOREPLICAS ", "OOM ", "READONLY ")
"""As they stand where the driver has no class for them, or in a script's error before Redis 7."""


class SlotMoving(FrontierUnavailable):
    """The keys are on their way to another node of the cluster; nothing was done."""


class Link:
    """One connection and the server run behind it."""

    __slots__ = (
        "born_ms", "cannot_wait", "connection", "durability", "endpoint", "replicas", "run_id",
        "strict",
    )  # fmt: skip

    def __init__(self, connection: Connection, *, endpoint: str) -> None:
        self.connection = connection
        self.endpoint = endpoint
        self.run_id = ""
        self.born_ms = 0
        """When the server began, by its own clock; 0 where a restart of it loses nothing."""
        self.strict = False
        self.durability = Durability.AT_ONCE
        self.replicas = 0
        self.cannot_wait = False
        """The server is too old to be asked when its log is synced."""

    def packed(self, calls: Sequence[Call]) -> list[bytes] | Exception:
        """Return calls as they go over the wire; none where they are meant for another server run.

        An argument that cannot be sent is the fault of its caller, and nobody else's.
        """
        if not all(one.run in ("", self.run_id) for one in calls):
            return []
        loaded = scripts.load(strict=self.strict)
        try:
            return [self._packed(one, loaded[one.script].sha) for one in calls]
        except Exception as error:  # noqa: BLE001 - told to the caller
            return error

    def _packed(self, call: Call, sha: str) -> bytes:
        run, born = self.run_id, self.born_ms
        args = [run if arg is RUN else born if arg is BORN else arg for arg in call.args]
        command: tuple[Any, ...] = ("EVALSHA", sha, len(call.keys), *call.keys, *args)
        packed: bytes = hiredis.pack_command(command)
        return packed

    def checked(self, calls: Sequence[Call], replies: list[Any]) -> list[Any] | Exception:
        """Return the replies to some calls, or what one of them means that is an error."""
        if len(replies) < len(calls):
            return [[b"RUN"] for _ in calls]  # meant for another run
        try:
            for one, reply in zip(calls, replies, strict=True):
                self.check(reply, f"script {one.script}")
        except CrawlerError as error:
            return error
        return replies

    async def exchange(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands together and return their replies, of which some may be errors."""
        # The library packs commands in Python; offers and commits have thousands of arguments.
        return await self.exchange_packed([hiredis.pack_command(one) for one in commands])

    async def exchange_packed(self, commands: Sequence[bytes]) -> list[Any]:
        """Send commands as they go over the wire, as :meth:`exchange` does."""
        if not commands:
            return []
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await self.connection.send_packed_command(b"".join(commands))
            replies: list[Any] = []
            for _ in commands:
                try:
                    replies.append(await self.connection.read_response(disable_decoding=True))
                except ResponseError as error:
                    replies.append(error)
        return replies

    def check(self, reply: object, what: str) -> None:
        """Raise what a reply means that is an error; not for MOVED.

        Raises:
            FrontierUnavailable: the server does not take it for now; says why.
            SettingsError: this user may not do it.
            ScriptBug: it failed.
        """
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
