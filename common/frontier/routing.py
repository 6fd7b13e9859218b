"""Sends calls to the nodes of a Redis Cluster that serve their keys, and follows keys that move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from redis.exceptions import MovedError

from common.frontier.data_server import DataServer
from common.frontier.data_servers import DataServers
from common.frontier.topology import slot_of
from common.model.errors import FrontierUnavailable

_ROUNDS: Final = 5
"""So often a call follows keys that move, before it waits."""

Part = TypeVar("Part")
Send = Callable[[DataServer, list[Part]], Awaitable[list[Any]]]


class Router:
    """Knows where to send what."""

    def __init__(self, servers: DataServers) -> None:
        self._servers = servers

    async def spread(
        self, parts: Sequence[Part], keys: Sequence[str], send: Send[Part]
    ) -> list[Any]:
        """Send each part to the node of its key; a reply each, or why there is none.

        Args:
            parts: of whatever ``send`` sends.
            keys: one a part; its first, where it has several.
            send: sends some to one server; returns a reply each.

        Returns:
            In the order of the parts: a reply, or the ``FrontierUnavailable`` in place of it.
        """
        await self._servers.ready()
        if self._servers.only is not None:
            return await _answers(send(self._servers.only, list(parts)), len(parts))
        slots = [slot_of(key) for key in keys]
        replies: list[Any] = [None] * len(parts)
        todo = list(range(len(parts)))
        for _ in range(_ROUNDS):
            topology = await self._servers.current()
            groups: dict[str, list[int]] = {}
            for at in todo:
                groups.setdefault(topology.owners[slots[at]] or "", []).append(at)
            answers = await asyncio.gather(
                *(
                    self._to(owner, [parts[at] for at in some], send)
                    for owner, some in groups.items()
                )
            )
            moved = []
            for some, answer in zip(groups.values(), answers, strict=True):
                for at, reply in zip(some, answer, strict=True):
                    replies[at] = reply
                    if isinstance(reply, MovedError):
                        moved.append(at)
                    elif isinstance(reply, FrontierUnavailable):
                        self._servers.doubt()
            if not moved:
                return replies
            todo = moved
            await self._servers.look_again(topology)
        for at in todo:
            replies[at] = FrontierUnavailable(
                f"the nodes of the Redis Cluster at {self._servers.endpoint} do not agree yet who "
                f"serves slot {slots[at]}"
            )
        return replies

    async def _to(self, owner: str, parts: list[Part], send: Send[Part]) -> list[Any]:
        server = self._servers.by_id.get(owner)
        if server is None:
            problem = f"no node of the Redis Cluster at {self._servers.endpoint} serves these keys"
            return [FrontierUnavailable(problem)] * len(parts)
        return await _answers(send(server, parts), len(parts))


async def _answers(sent: Awaitable[list[Any]], count: int) -> list[Any]:
    try:
        return await sent
    except FrontierUnavailable as error:
        return [error] * count
