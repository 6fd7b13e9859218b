"""Pages of a host against ``--max-pages-per-host``, where the host's URLs lie in several shards.

A URL is entered before it is fetched and settled before it is committed, so the budget is exact
whatever ends in between (``lua/ledger.lua``). Where shards own whole hosts this is not needed: the
script that claims counts there.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from common.frontier.client import FrontierClient
from common.frontier.keys import TaskKeys
from common.frontier.offers import shard_of
from common.frontier.replies import Refusal, refusal_of
from common.frontier.scripts import LAYOUT_VERSION, Call
from common.frontier.seen import fingerprint
from common.model.ids import HostKey, JobId, Task, Token
from common.model.job import JobSpec


class Entry(Enum):
    """What became of a URL that was to be entered."""

    ENTERED = 1
    FULL = 0
    """Of pages or of URLs in flight, which may turn out to be no pages: ask again later."""
    SPENT = -1
    """The host has had all its pages."""


class Spent(NamedTuple):
    """How a URL that may have been entered ended."""

    host: HostKey
    url: str
    is_page: bool


class Ledger:
    """The budgets of a job's hosts."""

    def __init__(self, client: FrontierClient, *, cluster: str, job: JobId, spec: JobSpec) -> None:
        self._client = client
        self._limit = spec.max_pages_per_host or 0
        self._keys = [TaskKeys(cluster, Task(job, shard)) for shard in range(spec.shards)]

    async def enter(self, host: HostKey, url: str, *, token: Token) -> Entry | Refusal:
        """Count a URL of which the caller owns the shard, once.

        Raises:
            FrontierUnavailable: no answer; repeating is harmless.
        """
        (reply,) = await self._client.call([self._call(host, [_mark(url)], [], token)])
        refusal = refusal_of(reply, "ledger")
        return refusal or Entry(reply[1][0])

    async def settle(self, spent: Sequence[Spent], *, token: Token) -> None:
        """Say how URLs ended, before they are committed or put back.

        Raises:
            FrontierUnavailable: no answer; repeating is harmless.
        """
        by_host: dict[HostKey, list[str | bytes | int]] = {}
        for one in spent:
            by_host.setdefault(one.host, []).extend((_mark(one.url), int(one.is_page)))
        calls = [self._call(host, [], args, token) for host, args in by_host.items()]
        for reply in await self._client.call(calls):
            refusal_of(reply, "ledger")  # a job that is gone has no budget any more

    def _call(
        self,
        host: HostKey,
        entered: Sequence[str | bytes | int],
        settled: Sequence[str | bytes | int],
        token: Token,
    ) -> Call:
        keys = self._keys[shard_of(host, len(self._keys))]
        args = [LAYOUT_VERSION, self._limit, token, len(entered), *entered, *settled]
        return Call("ledger", [keys.meta, keys.ledger(host)], args)


def _mark(url: str) -> int:
    return fingerprint(url, "exact").fingerprint
