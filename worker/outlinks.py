"""Which links of a page go into the frontier, and which of these may be new.

A link is refused (and counted as filtered) by depth, by ``--allow``/``--deny`` or by scope. What is
left and was not seen by this process before is offered. The cache holds links whose offer was
*taken*, so that skipping them loses nothing; it is dropped when the server was restarted, since an
older copy of the data may have come back.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential

from common.frontier.items import Item
from common.frontier.scope import ScopeSet, trusted_key
from common.model.errors import FrontierUnavailable
from common.model.ids import HostKey
from common.model.job import JobSpec
from common.web import scope, url

CACHE_LINKS = 500_000
"""Links the cache holds, in each of two generations."""
OUT_OF_SCOPE_S = 5.0
"""How long "not in scope" is believed: a seed's redirect may widen the scope."""
CACHE_HOSTS = 100_000

_Argument = TypeVar("_Argument")
_Answer = TypeVar("_Answer")


class Selected(NamedTuple):
    """What is to be done with the links of a page."""

    offers: list[Item]
    filtered: int


class Outlinks:
    """Scope, rules and the seen cache of one job in one process."""

    def __init__(self, scope_set: ScopeSet, spec: JobSpec) -> None:
        self._scope_set = scope_set
        self._spec = spec
        self._rules = scope.UrlRules(allow=spec.allow, deny=spec.deny)
        self._has_rules = bool(spec.allow or spec.deny)
        self._verdicts: dict[str, tuple[bool, float]] = {}
        self._young: set[str] = set()
        self._old: set[str] = set()
        self._run = ""

    async def select(self, links: Sequence[str], *, depth: int, referrer: str) -> Selected:
        """Return which of a page's links to offer.

        Args:
            links: canonical, distinct.
            depth: of the links.
            referrer: the page.
        """
        limit = self._spec.max_depth
        if limit is not None and depth > limit:
            return Selected([], len(links))
        young, old = self._young, self._old
        unseen = [link for link in links if link not in young and link not in old]
        if self._has_rules:
            allowed = [link for link in unseen if self._rules.refusal(link) is None]
        else:
            allowed = unseen
        filtered = len(unseen) - len(allowed)
        if self._spec.scope != "any":
            kept = await self._in_scope(allowed)
            filtered += len(allowed) - len(kept)
            allowed = kept
        offers = []
        for link in allowed:
            host = url.host_key(link)
            offers.append(Item(host, link[len(host) :], depth, referrer))
        return Selected(offers, filtered)

    async def _in_scope(self, links: Sequence[str]) -> list[str]:
        by_prefix = self._spec.scope == "prefix"
        now = time.monotonic()
        wanted: dict[str, list[str]] = {}
        verdicts = self._verdicts
        for link in links:
            name = link if by_prefix else url.host_key(link)
            known = verdicts.get(name)
            if known is None or (not known[0] and known[1] < now):
                wanted.setdefault(name, [])
        if wanted:
            await self._look_up(wanted, now)
        kept = [link for link in links if verdicts[link if by_prefix else url.host_key(link)][0]]
        if len(verdicts) > CACHE_HOSTS:
            verdicts.clear()
        return kept

    async def _look_up(self, wanted: dict[str, list[str]], now: float) -> None:
        kind = self._spec.scope
        asked: dict[str, None] = {}
        for name, keys in wanted.items():
            keys.extend(scope.scope_keys(name if kind == "prefix" else name + "/", kind))
            asked.update(dict.fromkeys(keys))
        names = list(asked)
        answers = dict(zip(names, await _patiently(self._scope_set.contains, names), strict=True))
        for name, keys in wanted.items():
            is_in = any(answers[key] for key in keys)
            self._verdicts[name] = (is_in, now + OUT_OF_SCOPE_S)

    async def widen(self, target: str) -> None:
        """Let the target of a seed's redirect join the scope."""
        key = scope.seed_scope_key(target, self._spec.scope)
        if key is not None:
            await _patiently(self._scope_set.add, [key])
            self._verdicts.clear()

    async def is_trusted(self, host: HostKey) -> bool:
        """Tell whether headers and cookies of the job may be sent to a host: a seed's own."""
        if not (self._spec.header or self._spec.cookie):
            return False
        name = trusted_key(url.authority_of(host + "/"))
        known = self._verdicts.get(name)
        if known is None or (not known[0] and known[1] < time.monotonic()):
            (is_seed,) = await _patiently(self._scope_set.contains, [name])
            known = self._verdicts[name] = (is_seed, time.monotonic() + OUT_OF_SCOPE_S)
        return known[0]

    def taken(self, offers: Sequence[Item], *, run: str) -> None:
        """Remember links whose offer was taken on a server run."""
        if run != self._run:
            self._young, self._old, self._run = set(), set(), run
        self._young.update(item.url for item in offers)
        if len(self._young) > CACHE_LINKS:
            self._young, self._old = set(), self._young


async def _patiently(
    call: Callable[[_Argument], Awaitable[_Answer]], argument: _Argument
) -> _Answer:
    """Repeat a harmless call until the server answers: a fetched page is worth the wait."""
    async for attempt in AsyncRetrying(
        retry=retry_if_exception_type(FrontierUnavailable),
        wait=wait_exponential(multiplier=0.05, max=1.0),
    ):
        with attempt:
            return await call(argument)
    raise AssertionError("tenacity ends only by an answer or an exception")
