"""The plugins of a job in a worker: which hooks are asked when, and in which order.

Whatever a hook does (raise, give something of another type, take too long) becomes
:class:`PluginFailed`, which ends the page. How a hook is called is in ``worker.plugin_calls``, what
it may give in ``worker.plugin_answers``, what becomes of its faults in ``worker.plugin_faults``.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from multidict import CIMultiDict

from common.frontier.owner import HOLD_MS
from common.model.errors import CrawlerError
from common.model.job import JobSpec
from common.plugins.api import RULE, JobInfo, Link, Plugin, Request, Response, hooks_of
from common.plugins.loading import PluginSet
from common.runtime.printable import printable
from worker.plugin_answers import facts_of, headers_of, links_of, rule_of
from worker.plugin_calls import HookCalls
from worker.plugin_faults import PluginFailed, PluginFaults

CLOSE_S: Final = 5.0
"""Not only this job waits for it."""
PREPARE_S: Final = HOLD_MS / 2000
"""For the plugins of a job together: half of the time within which a claimed URL must be sent.

One that is late goes back unasked, and would do so for ever."""
FAILED: Final = "failed"
"""The rule by which links of a sitemap are counted on which a plugin failed."""
MAX_RULES: Final = 100
"""Rules of the plugins of one job that are counted by their own names."""
_MAX_RULE_CHARS: Final = 80


class _Named(NamedTuple):
    name: str
    plugin: Plugin


class JobPlugins:
    """The plugins of one job in one process, in the order in which the job names them."""

    def __init__(self, faults: PluginFaults) -> None:
        """Use ``open_plugins``."""
        self._faults = faults
        self._calls = HookCalls(faults)
        self._opened: list[_Named] = []
        self._by_hook: dict[str, list[_Named]] = {}
        self._rules: set[str] = set()

    def has(self, hook: str) -> bool:
        """Tell whether any plugin has a hook."""
        return hook in self._by_hook

    async def open(self, name: str, kind: type[Plugin], job: JobInfo) -> None:
        """Make a plugin and open it.

        Raises:
            PluginFailed: it could not be.
        """

        def open_() -> Any:
            plugin = kind()
            self._opened.append(_Named(name, plugin))
            return plugin.opened(job)

        await self._calls.run(name, "opened", open_)
        for hook in hooks_of(kind):
            self._by_hook.setdefault(hook, []).append(self._opened[-1])

    async def close(self) -> None:
        """Close all, the last opened first; who fails has been noted."""
        while self._opened:
            one = self._opened.pop()
            try:
                await self._calls.run(one.name, "closed", one.plugin.closed, within_s=CLOSE_S)
            except PluginFailed:
                continue  # noted

    def let_pass(
        self,
        links: Sequence[str],
        filtered: Counter[str],
        *,
        depth: int,
        referrer: str,
        is_sitemap: bool = False,
    ) -> list[str]:
        """Return the links that no plugin refuses, and count the others by rule.

        Those of a sitemap on which one fails are counted too: a sitemap cannot be put back.

        Raises:
            PluginFailed: one failed on a page's link.
        """
        kept = list(links)
        for one in self._by_hook["refuse"]:
            began = time.monotonic()
            try:
                kept = self._let_pass(one, kept, filtered, depth, referrer, is_sitemap=is_sitemap)
            finally:
                self._faults.took(one.name, "refuse", time.monotonic() - began)
        return kept

    def _let_pass(
        self,
        one: _Named,
        links: Iterable[str],
        filtered: Counter[str],
        depth: int,
        referrer: str,
        *,
        is_sitemap: bool,
    ) -> list[str]:
        kept = []
        for url in links:
            try:
                rule = self._refusal(one, Link(url=url, depth=depth, referrer=referrer))
            except PluginFailed:
                if not is_sitemap:
                    raise
                rule = f"{RULE}{one.name}: {FAILED}"
            if rule is None:
                kept.append(url)
            else:
                filtered[rule] += 1
        return kept

    def _refusal(self, one: _Named, link: Link) -> str | None:
        try:
            said = one.plugin.refuse(link)
            return None if said is None else self._rule(one.name, rule_of(said))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._faults.failed(one.name, "refuse", error) from error

    def _rule(self, name: str, said: str) -> str:
        rule = f"{RULE}{name}: {printable(said)[:_MAX_RULE_CHARS]}"
        if rule not in self._rules:
            if len(self._rules) >= MAX_RULES:
                return f"{RULE}{name}: other rules"
            self._rules.add(rule)
        return rule

    async def prepare(self, request: Request) -> Mapping[str, str] | None:
        """Return the headers for a request to a host of the seeds.

        Raises:
            PluginFailed: one failed.
        """
        found: CIMultiDict[str] = CIMultiDict()
        before = time.monotonic() + PREPARE_S
        for name, plugin in self._by_hook.get("prepare", ()):
            call = partial(plugin.prepare, request)
            left_s = before - time.monotonic()
            late = f"not done within {PREPARE_S:g} s, with the plugins before it"
            given = await self._calls.run(
                name, "prepare", call, headers_of, within_s=left_s, late=late
            )
            if time.monotonic() > before:  # one that does not await is not interrupted
                raise self._faults.failed(name, "prepare", TimeoutError(late))
            found.update(given)
        return found or None

    async def read(
        self, response: Response, *, is_page: bool
    ) -> tuple[Sequence[str], dict[str, dict[str, Any]] | None]:
        """Return the links of a response, further ones among them, and what its record is to hold.

        Args:
            response: with the links that were found without plugins.
            is_page: its links are to be followed.

        Raises:
            PluginFailed: one failed.
        """
        for name, plugin in self._by_hook.get("parse", ()) if is_page else ():
            check = partial(links_of, base=response.final_url)
            links = await self._calls.run(name, "parse", partial(plugin.parse, response), check)
            response = replace(response, links=tuple(dict.fromkeys((*response.links, *links))))
        extra: dict[str, dict[str, Any]] = {}
        for name, plugin in self._by_hook.get("enrich", ()):
            call = partial(plugin.enrich, response)
            if facts := await self._calls.run(name, "enrich", call, facts_of):
                extra[name] = facts
        return response.links, extra or None


async def open_plugins(
    plugins: PluginSet, spec: JobSpec, *, job: str, worker: str, faults: PluginFaults
) -> JobPlugins | None:
    """Return the plugins a job names, opened; None where it names none.

    Raises:
        CrawlerError: one is not there, cannot be imported or did not open; none is left open.
    """
    if not spec.plugin:
        return None
    opened = JobPlugins(faults)
    try:
        for name in dict.fromkeys(spec.plugin):
            # One that is installed is imported now, which may take a while.
            kind = await asyncio.to_thread(plugins.get, name)
            info = JobInfo(id=job, plugin=name, user_agent=spec.user_agent, worker=worker)
            await opened.open(name, kind, info)
    except PluginFailed as error:
        await opened.close()
        raise CrawlerError(str(error)) from error
    except BaseException:
        await opened.close()
        raise
    return opened
