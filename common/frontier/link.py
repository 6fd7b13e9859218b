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

from common.frontier.scripts import BORN, RUN
from common.frontier.server import Durability, with_remedy
from common.model.errors import FrontierUnavailable, ScriptBug, SettingsError

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

    def filled(self, args: list[str | bytes | int]) -> list[str | bytes | int]:
        """Return the arguments of a call, placeholders replaced."""
        run, born = self.run_id, self.born_ms
        return [run if arg is RUN else born if arg is BORN else arg for arg in args]

    async def exchange(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send commands together and return their replies, of which some may be errors."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            # The library packs commands in Python; offers and commits have thousands of arguments.
            await self.connection.send_packed_command(b"".join(map(hiredis.pack_command, commands)))
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
