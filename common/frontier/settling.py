"""What becomes of claims in the end, and how that is written: one script for each way to end.

Each of them moves URLs, hosts and counters in one step; several calls share a round trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from common.frontier.keys import HostQueues, TaskKeys
from common.frontier.letters import encode_letter
from common.frontier.scripts import LAYOUT_VERSION, RUN, Call
from common.model.ids import HostKey, Token
from common.model.records import Outcome

NOTHING: Final[Mapping[Any, int]] = MappingProxyType({})
"""No counts of anything."""


class Finished(NamedTuple):
    """A claim to commit."""

    claim: int
    host: HostKey
    ended_ago_ms: int
    """Since the response ended; -1 = no request was sent."""
    delay_ms: int
    outcome: Outcome
    record: bytes
    """The result record, JSON."""
    letter: bytes = b""
    """For a dead letter: its item, so that it can be put back."""
    visit: bytes = b""
    """Where pages are visited again: what is to come of this one (``visits.next_visit``)."""


class Retry(NamedTuple):
    """A claim to put back for later."""

    claim: int
    host: HostKey
    ended_ago_ms: int
    delay_ms: int
    after_ms: int
    item: bytes


class Release(NamedTuple):
    """A claim to give back unfinished."""

    claim: int
    host: HostKey
    ended_ago_ms: int
    delay_ms: int
    wait_ms: int = 0
    """Before which no URL of the host is to be claimed: others use the host."""


class SitemapRead(NamedTuple):
    """A claim of a sitemap to finish."""

    claim: int
    host: HostKey
    ended_ago_ms: int
    delay_ms: int
    url: str
    record: bytes
    """What became of it, JSON."""


class Settled(NamedTuple):
    """Claims were settled; ``gone`` had been settled before, or requeued."""

    gone: list[int]


def claim_names(keys: TaskKeys) -> list[str]:
    """Return the keys that every script on claims touches, in its order."""
    return [keys.meta, keys.ready, keys.pace, keys.slots, keys.slot, keys.busy, keys.in_flight]


class SettleCalls:
    """Makes the calls that settle claims of one task."""

    def __init__(self, keys: TaskKeys, token: Token, *, counts_pages: bool) -> None:
        """Prepare.

        Args:
            keys: of the task.
            token: under which it is owned.
            counts_pages: whether the shard counts the pages of its hosts.
        """
        self._keys = keys
        self._names = claim_names(keys)
        self._owner = (LAYOUT_VERSION, RUN, token)
        self._counts_pages = int(counts_pages)

    def calls(
        self,
        run: str,
        *,
        finished: Sequence[Finished],
        retries: Sequence[Retry],
        releases: Sequence[Release],
        sitemaps: Sequence[SitemapRead],
        filtered: Mapping[str, int],
    ) -> list[Call]:
        """Return the calls that ``TaskFrontier.settle`` makes under a server run."""
        calls = []
        if finished or filtered:
            calls.append(self._commit(run, finished, filtered))
        if retries:
            calls.append(self._retry(run, retries))
        if releases:
            calls.append(self._release(run, releases))
        if sitemaps:
            calls.append(self._sitemap(run, sitemaps))
        return calls

    def _commit(self, run: str, finished: Sequence[Finished], filtered: Mapping[str, int]) -> Call:
        keys, queues = self._keys, HostQueues(self._keys)
        refused = msgspec.json.encode(filtered) if filtered else b""
        args: list[str | bytes | int] = [*self._owner, self._counts_pages, refused]
        for one in finished:
            args += _ended(one, queues)
            letter = encode_letter(one.letter, one.record) if one.letter else b""
            args += (one.outcome.value, one.record, letter, one.visit)
        return Call(
            "commit",
            [
                *self._names, keys.results, keys.dead, keys.pages, keys.errors, keys.rules,
                keys.due, keys.visited, *queues.names,
            ],
            args,
            run,
        )  # fmt: skip

    def _sitemap(self, run: str, read: Sequence[SitemapRead]) -> Call:
        queues = HostQueues(self._keys)
        args: list[str | bytes | int] = [*self._owner]
        for one in read:
            args += _ended(one, queues)
            args += (one.url, one.record)
        return Call("sitemap", [*self._names, self._keys.sitemaps, *queues.names], args, run)

    def _retry(self, run: str, retries: Sequence[Retry]) -> Call:
        queues = HostQueues(self._keys)
        args: list[str | bytes | int] = [*self._owner]
        for one in retries:
            args += _ended(one, queues)
            args += (one.after_ms, one.item)
        return Call("retry", [*self._names, self._keys.delayed, *queues.names], args, run)

    def _release(self, run: str, releases: Sequence[Release]) -> Call:
        queues = HostQueues(self._keys)
        args: list[str | bytes | int] = [*self._owner]
        for one in releases:
            args += _ended(one, queues)
            args.append(one.wait_ms)
        return Call("release", [*self._names, *queues.names], args, run)


def _ended(
    one: Finished | Retry | Release | SitemapRead, queues: HostQueues
) -> tuple[int, HostKey, int, int, int]:
    """Return what all these scripts are told first of a claim (``end_claims`` of _hosts.lua)."""
    return one.claim, one.host, queues.index(one.host), one.ended_ago_ms, one.delay_ms
