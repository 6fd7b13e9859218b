"""Which links of a page go into the frontier, and which of these may be new.

A link is refused, and counted by its rule, by depth, ``--traps``, ``--allow``/``--deny``, scope or
a plugin. What is left and was not seen by this process before is offered. The cache holds links
whose offer was *taken* and is kept, so that skipping them loses nothing; it is dropped before a
task goes on under another server run, since an older copy of the data may have come back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from common.frontier.items import Item
from common.frontier.scope import ScopeSet
from common.model.ids import HostKey
from common.model.job import JobSpec
from common.web import scope, url
from common.web.cleaning import Cleaner
from common.web.traps import Traps
from worker.scope_verdicts import ScopeVerdicts
from worker.steps import in_steps

if TYPE_CHECKING:
    from worker.plugins import JobPlugins

CACHE_LINKS: Final = 200_000
"""Links the cache holds, in each of two generations."""


class Selected(NamedTuple):
    """What is to be done with the links of a page."""

    offers: list[Item]
    filtered: Mapping[str, int]
    """Links refused, by rule."""


class Outlinks:
    """Scope, rules and the seen cache of one job in one process."""

    def __init__(
        self, scope_set: ScopeSet, spec: JobSpec, plugins: JobPlugins | None = None
    ) -> None:
        self._scope = ScopeVerdicts(scope_set, spec.scope)
        self._max_depth = spec.max_depth
        self._plugins = plugins if plugins is not None and plugins.has("refuse") else None
        prepares = plugins is not None and plugins.has("prepare")
        self._sends_own_headers = prepares or bool(spec.header or spec.cookie)
        self._rules = scope.UrlRules(allow=spec.allow, deny=spec.deny)
        self._has_rules = bool(spec.allow or spec.deny)
        self._traps = Traps(name for name in spec.traps if name != "none")
        self.clean = Cleaner(spec.clean)
        self._young: set[str] = set()
        self._old: set[str] = set()
        self._runs: set[str] = set()
        """Server runs that tasks were adopted under since the cache began."""

    async def select(
        self, links: Sequence[str], *, depth: int, referrer: str, is_sitemap: bool = False
    ) -> Selected:
        """Return which of a page's links to offer.

        Args:
            links: canonical, distinct.
            depth: of the links.
            referrer: the page.
            is_sitemap: it is a sitemap.

        Raises:
            PluginFailed: a plugin of the job did, on a link of a page.
        """
        if self._max_depth is not None and depth > self._max_depth:
            return Selected([], {f"max_depth: {self._max_depth}": len(links)} if links else {})
        offers: list[Item] = []
        filtered: Counter[str] = Counter()
        met: set[str] = set()
        async for some in in_steps(links):
            unseen = self._unseen(self._cleaned(some, met) if self.clean else some)
            allowed = self._allowed(unseen, filtered)
            kept = await self._scope.kept(allowed)
            if len(kept) < len(allowed):
                filtered[self._scope.rule] += len(allowed) - len(kept)
            if self._plugins is not None:
                kept = self._plugins.let_pass(
                    kept, filtered, depth=depth, referrer=referrer, is_sitemap=is_sitemap
                )
            for link in kept:
                host = url.host_key(link)
                offers.append(Item(host, link[len(host) :], depth, referrer))
        return Selected(offers, filtered)

    async def select_sitemaps(self, links: Sequence[str], *, host: HostKey, level: int) -> Selected:
        """Return which sitemaps to offer: what may be asked for at all, but no page.

        Args:
            links: canonical, distinct.
            host: whose robots.txt or sitemap leads to them. Its own are in scope wherever they
                lie: most stand at the top, above the folder that a crawl may keep to.
            level: how many sitemaps lead to these, themselves included.
        """
        own = url.authority_of(host + "/")
        found = [
            Item(host := url.host_key(one), one[len(host) :], 1, None, sitemap=level)
            for one in links
        ]
        unseen = [one for one in found if not self._is_known(one.identity)]
        allowed = [one for one in unseen if not self._rules.is_denied(one.url)]
        others = [one.url for one in allowed if url.authority_of(one.url) != own]
        outside = frozenset(others) - frozenset(await self._scope.kept(others))
        filtered = Counter({self._scope.rule: len(outside)})
        return Selected([one for one in allowed if one.url not in outside], +filtered)

    def _cleaned(self, links: Sequence[str], met: set[str]) -> list[str]:
        """Return cleaned links that were not met before."""
        cleaned = [link for link in dict.fromkeys(map(self.clean, links)) if link not in met]
        met.update(cleaned)
        return cleaned

    def _is_known(self, identity: str) -> bool:
        return identity in self._young or identity in self._old

    def _unseen(self, links: Sequence[str]) -> list[str]:
        young, old = self._young, self._old
        return [link for link in links if link not in young and link not in old]

    def _allowed(self, links: list[str], filtered: Counter[str]) -> list[str]:
        if not self._has_rules and not self._traps:
            return links
        kept = []
        for link in links:
            rule = self._traps.refusal(link)
            if rule is None and self._has_rules:
                rule = self._rules.refusal(link)
            if rule is None:
                kept.append(link)
            else:
                filtered[rule] += 1
        return kept

    async def widen(self, target: str) -> None:
        """Let the target of a seed's redirect join the scope."""
        await self._scope.widen(target)

    async def is_trusted(self, host: HostKey) -> bool:
        """Tell whether headers and cookies of the job may be sent to a host: a seed's own."""
        return self._sends_own_headers and await self._scope.is_trusted(host)

    def begin_run(self, run: str) -> None:
        """Forget what other server runs knew: an older copy of their data may have come back."""
        if run not in self._runs:
            self._young, self._old = set(), set()
            self._runs.add(run)

    def taken(self, offers: Sequence[Item]) -> None:
        """Remember links whose offer was taken and is kept (``Offers.kept``)."""
        self._young.update(item.identity for item in offers)
        if len(self._young) > CACHE_LINKS:
            self._young, self._old = set(), self._young
