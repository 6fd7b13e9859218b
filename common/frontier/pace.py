"""Permits: who may send how much to a host, over all jobs and workers of a cluster.

The same for a *group*: the hosts of one address or of one registered domain, without a delay. One
hash a host or group holds what each *holder* (one job in one worker process) has on the wire, which
permits it has, and which limits it asks for; the strictest of the active ones hold for all. A
holder says what it has, and is told what it may have: see ``lua/permit.lua``. Permits end by
themselves, and so does the hash, so nothing is left behind by whoever ends without a word.

Where the Redis server's clock was set forward, its times of what others did last mean nothing any
more: whoever notices lets a host rest for one delay before it uses a permit.

Not promised: spacing across such a jump by a process that began after it, or across a failover that
loses what was acknowledged, beyond one delay of rest.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from common.frontier.client import FrontierClient
from common.frontier.clock import ServerClock
from common.frontier.keys import pace_key
from common.frontier.replies import refusal_of
from common.frontier.scripts import BORN, RUN, Call
from common.model.errors import FrontierUnavailable
from common.model.ids import GroupKey, PaceKey, Token

VALID_MS: Final = 1000
"""For so long a permit may be used; a request that is sent later was never allowed."""
LEAVES: Final = -1
"""In place of a delay: the holder wants nothing any more."""


def domain_group(domain: str) -> GroupKey:
    """Return what the hosts of a registered domain take turns for."""
    return GroupKey(f"domain:{domain}")


def address_group(address: str) -> GroupKey:
    """Return what the hosts at an address take turns for."""
    return GroupKey(f"ip:{address}")


class Ask(NamedTuple):
    """What a holder says of one host or group, and what it wants."""

    key: PaceKey
    serial: int
    """Above that of every earlier call of this holder for the host."""
    on_wire: int
    started_ago_ms: int
    """Since a request last started; -1 = none since the last call."""
    ended_ago_ms: int
    """Since a response last ended; -1 = none since the last call."""
    pause_ms: int
    """From then on, for which the host asked to be left alone."""
    want: int
    patience_ms: int
    """How long the first permit may have to wait for its time."""
    delay_ms: int
    """:data:`LEAVES` to be forgotten."""
    at_once: int
    """Requests at one time that the holder allows."""


class Permit(NamedTuple):
    """What a holder may do."""

    granted: int
    """Permits beside the requests on the wire; 0 = ask again later."""
    start_in_ms: int
    """Before that no permit may be used."""
    delay_ms: int
    """In force, the strictest; 0 = a permit may be used for one request after the other."""
    wait_ms: int
    """Where nothing was granted: before that there is nothing to ask for."""
    others: int
    """Other holders that have or want something of it."""


class Permits:
    """The permits of one holder."""

    def __init__(
        self,
        client: FrontierClient,
        *,
        cluster: str,
        token: Token,
        dead_below: int = 0,
        lasts_ms: int,
    ) -> None:
        """Prepare.

        Args:
            client: the data server.
            cluster: hosts are paced within it.
            token: a fencing token of this process: what says that it is dead one day.
            dead_below: holders of lower tokens are known dead, and so are their requests.
            lasts_ms: the longest a request may last.
        """
        self._client = client
        self._cluster = cluster
        self._dead_below = dead_below
        self._lasts_ms = lasts_ms
        self._holder = f"{token}:{secrets.token_hex(6)}"

    async def ask(self, asks: Sequence[Ask]) -> list[Permit | FrontierUnavailable | None]:
        """Tell and ask for several keys in one round trip (one to each node of a cluster).

        Returns:
            An answer to each; None where a later call was seen. Where there was no answer, permits
            that were granted meanwhile are not to be used; the next call says so.
        """
        sent_at = time.monotonic()
        replies = await self._client.try_call([self._call(one) for one in asks])
        received_at = time.monotonic()
        answers: list[Permit | FrontierUnavailable | None] = []
        clocks = [self._client.clock(pace_key(self._cluster, one.key)) for one in asks]
        for reply, clock in zip(replies, clocks, strict=True):
            if isinstance(reply, FrontierUnavailable):
                answers.append(reply)
            elif refusal_of(reply, "permit"):
                answers.append(None)
            else:
                *permit, server_ms = reply[1:]
                clock.read(server_ms / 1000, sent_at=sent_at, received_at=received_at)
                answers.append(Permit(*permit))
        return [
            _after_jump(one, clock, received_at) if isinstance(one, Permit) else one
            for one, clock in zip(answers, clocks, strict=True)
        ]

    def _call(self, ask: Ask) -> Call:
        args: list[str | bytes | int] = [
            RUN, BORN, self._holder, ask.serial, self._dead_below, ask.on_wire,
            ask.started_ago_ms, ask.ended_ago_ms, ask.pause_ms, ask.want, ask.patience_ms,
            ask.delay_ms, ask.at_once, self._lasts_ms, VALID_MS,
        ]  # fmt: skip
        return Call("permit", [pace_key(self._cluster, ask.key)], args)


def _after_jump(permit: Permit, clock: ServerClock, now: float) -> Permit:
    """Return the permit, or that there is none until a delay after the clock's jump is over."""
    rest_ms = (clock.jumped_at - now) * 1000 + permit.delay_ms
    if permit.granted == 0 or permit.start_in_ms >= rest_ms:
        return permit
    return permit._replace(granted=0, start_in_ms=0, wait_ms=math.ceil(rest_ms))


async def taken(client: FrontierClient, *, cluster: str, key: PaceKey) -> int:
    """Return how many permits and requests all holders have, by what each said last.

    Raises:
        FrontierUnavailable: no answer.
    """
    (flat,) = await client.commands([("HGETALL", pace_key(cluster, key))])
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    return sum(int(said.split()[1]) for name, said in fields.items() if b":" in name)
