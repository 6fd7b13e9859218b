"""Runs the hooks of a job's plugins, and keeps their faults to the page at hand.

Whatever a hook does (raise, give something of another type, take too long) becomes
:class:`PluginFailed`, which ends the page. A hook that awaits does so in a task of its own: whether
it cancels that or does not end when it is cancelled, the page's task goes on, and only what this
worker itself does to the page goes through. Faults are counted, and logged a few times an hour,
with the traceback of the latest.

A synchronous hook, or a part of one that awaits, stops the event loop until it returns, and nothing
here can help; one that took long is named in the log once it is back.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import traceback
import types
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import structlog
from multidict import CIMultiDict

from common.frontier.owner import HOLD_MS
from common.model.errors import CrawlerError
from common.model.job import JobSpec
from common.plugins.api import RULE, JobInfo, Link, Plugin, Request, Response, hooks_of
from common.plugins.loading import PluginSet
from common.runtime.printable import printable
from common.runtime.request_secrets import header_fault
from common.web.url import canonicalize

HOOK_S: Final = 30.0
"""How long a hook that awaits may take, but for these:"""
CLOSE_S: Final = 5.0
"""Not only this job waits for it."""
PREPARE_S: Final = HOLD_MS / 2000
"""For the plugins of a job together: half of the time within which a claimed URL must be sent.

One that is late goes back unasked, and would do so for ever."""
BLOCKS_S: Final = 1.0
"""How long the event loop may stand still in a hook before the log names it."""
MAX_LINKS: Final = 100_000
"""Of one plugin from one page: an iterator may have no end."""
MAX_EXTRA_BYTES: Final = 65_536
MAX_DEPTH: Final = 32
"""Of objects and arrays in each other: readers of records must not fail on them."""
FAILED: Final = "failed"
"""The rule by which links of a sitemap are counted on which a plugin failed."""
MAX_RULES: Final = 100
"""Rules of the plugins of one job that are counted by their own names."""
_MAX_RULE_CHARS: Final = 80
_MAX_MESSAGE_CHARS: Final = 300
_LOG_EVERY_S: Final = 600.0
_LOG_FRAMES: Final = 10
_MAX_TRACE_CHARS: Final = 10_000

T = TypeVar("T")

log = structlog.get_logger()


class PluginFailed(Exception):
    """A hook of a plugin failed; says which and how, in one line."""

    def __init__(self, plugin: str, said: str) -> None:
        super().__init__(said)
        self.plugin = plugin
        """Its name."""


class PluginFaults:
    """What went wrong in the plugins of one worker process."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        """By plugin and hook."""
        self._silent_until: dict[tuple[str, str, str], float] = {}

    def note(self, plugin: str, hook: str, error: BaseException) -> None:
        """Count a fault, and log it unless one of that hook was logged a short while ago."""
        self.counts[plugin, hook] += 1
        if self._may_log("failed", plugin, hook):
            log.error(
                "plugin.failed", plugin=plugin, hook=hook, so_far=self.counts[plugin, hook],
                silent_for_s=_LOG_EVERY_S, exception=_trace(error),
            )  # fmt: skip

    def took(self, plugin: str, hook: str, seconds: float) -> None:
        """Log a hook in which the event loop stood still for long, likewise."""
        if seconds >= BLOCKS_S and self._may_log("blocked", plugin, hook):
            log.warning(
                "plugin.blocked_the_worker", plugin=plugin, hook=hook, seconds=round(seconds, 1),
                silent_for_s=_LOG_EVERY_S, remedy="await what takes long, or use a thread",
            )  # fmt: skip

    def _may_log(self, what: str, plugin: str, hook: str) -> bool:
        which, now = (what, plugin, hook), time.monotonic()
        if self._silent_until.get(which, 0.0) > now:
            return False
        self._silent_until[which] = now + _LOG_EVERY_S
        return True


class _Named(NamedTuple):
    name: str
    plugin: Plugin


class _Ended(NamedTuple):
    """How a hook, or a look at what it gave, ended."""

    value: Any = None
    error: BaseException | None = None


class JobPlugins:
    """The plugins of one job in one process, in the order in which the job names them."""

    def __init__(self, faults: PluginFaults) -> None:
        """Use ``open_plugins``."""
        self._faults = faults
        self._opened: list[_Named] = []
        self._by_hook: dict[str, list[_Named]] = {}
        self._rules: set[str] = set()
        self._running: set[asyncio.Task[_Ended]] = set()
        """Hooks that await; a loop alone does not keep their tasks."""

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

        await self._guarded(name, "opened", open_)
        for hook in hooks_of(kind):
            self._by_hook.setdefault(hook, []).append(self._opened[-1])

    async def close(self) -> None:
        """Close all, the last opened first; who fails has been noted."""
        while self._opened:
            one = self._opened.pop()
            try:
                await self._guarded(one.name, "closed", one.plugin.closed, within_s=CLOSE_S)
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
            return None if said is None else self._rule(one.name, _name_of_rule(said))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._failed(one.name, "refuse", error) from error

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
            given = await self._guarded(name, "prepare", call, _headers, within_s=left_s, late=late)
            if time.monotonic() > before:  # one that does not await is not interrupted
                raise self._failed(name, "prepare", TimeoutError(late))
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
            check = partial(_links, base=response.final_url)
            links = await self._guarded(name, "parse", partial(plugin.parse, response), check)
            response = replace(response, links=tuple(dict.fromkeys((*response.links, *links))))
        extra: dict[str, dict[str, Any]] = {}
        for name, plugin in self._by_hook.get("enrich", ()):
            call = partial(plugin.enrich, response)
            if facts := await self._guarded(name, "enrich", call, _facts):
                extra[name] = facts
        return response.links, extra or None

    async def _guarded(
        self,
        name: str,
        hook: str,
        call: Callable[[], Any],
        check: Callable[[Any], Any] | None = None,
        *,
        within_s: float | None = None,
        late: str | None = None,
    ) -> Any:
        """Return what a hook gives, as ``check`` makes it.

        Raises:
            PluginFailed: it failed.
        """
        took = partial(self._faults.took, name, hook)
        ended = _tried(call, took)
        if ended.error is None and inspect.isawaitable(ended.value):
            within_s = HOOK_S if within_s is None else within_s
            late = late or f"not done within {within_s:g} s"
            waiting = _watched(_tried_awaiting(ended.value), took)
            running = asyncio.create_task(waiting, name=f"plugin {name}, {hook}")
            ended = await self._awaited(running, within_s=within_s, late=late)
        if ended.error is None and check is not None:
            ended = _tried(partial(check, ended.value), took)
        if ended.error is not None:
            raise self._failed(name, hook, ended.error) from ended.error
        return ended.value

    async def _awaited(
        self, running: asyncio.Task[_Ended], *, within_s: float, late: str
    ) -> _Ended:
        """Return how a hook ends; one that is late is cancelled, and not waited for any more."""
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        try:
            await asyncio.wait([running], timeout=within_s)
            if running.done() and not running.cancelled():
                return running.result()
            return _Ended(error=TimeoutError(late))
        finally:
            running.cancel()

    def _failed(self, name: str, hook: str, error: BaseException) -> PluginFailed:
        self._faults.note(name, hook, error)
        said = " ".join(_written(traceback.format_exception_only, error).split())
        return PluginFailed(name, f"plugin {name}, {hook}: {printable(said)[:_MAX_MESSAGE_CHARS]}")


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


def _tried(call: Callable[[], Any], took: Callable[[float], None]) -> _Ended:
    began = time.monotonic()
    try:
        return _Ended(call())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a plugin raises is its page's fault
        return _Ended(error=error)
    finally:
        took(time.monotonic() - began)


async def _tried_awaiting(answer: Awaitable[Any]) -> _Ended:
    try:
        return _Ended(await answer)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - as above
        return _Ended(error=error)


async def _watched(work: Coroutine[Any, Any, T], took: Callable[[float], None]) -> T:
    """Return what comes of ``work``; ``took`` hears of the seconds between two of its waits."""
    return await _steps(work, took)


@types.coroutine
def _steps(work: Coroutine[Any, Any, T], took: Callable[[float], None]) -> Generator[Any, Any, T]:
    go: Callable[[], Any] = partial(work.send, None)
    while True:
        began = time.monotonic()
        try:
            waits_for = go()
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            took(time.monotonic() - began)
        try:
            go = partial(work.send, (yield waits_for))
        except BaseException as error:  # noqa: BLE001 - handed on, as "yield from" does
            go = partial(work.throw, error)


def _trace(error: BaseException) -> str:
    whole = partial(traceback.format_exception, limit=-_LOG_FRAMES)
    return _written(whole, error)[-_MAX_TRACE_CHARS:]


def _written(write: Callable[[BaseException], list[str]], error: BaseException) -> str:
    """Return an exception as text; its parts are a plugin's, and may raise themselves."""
    try:
        return "".join(write(error))
    except Exception:  # noqa: BLE001 - whatever they raise
        return f"{type(error).__name__}, of which nothing more can be written"


def _name_of_rule(said: Any) -> str:
    if not isinstance(said, str) or not said:
        raise TypeError(f"{_kind(said)} is no name of a rule; give a text, or None")
    return said


def _headers(given: Any) -> CIMultiDict[str]:
    found: CIMultiDict[str] = CIMultiDict()
    if given is None:
        return found
    if not isinstance(given, Mapping):
        raise TypeError(f"{_kind(given)} is no mapping of headers")
    for name, value in given.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError("names and values of headers must be texts")
        if (fault := header_fault(name, value)) is not None:
            raise ValueError(fault)
        found[name] = value
    return found


def _links(given: Any, *, base: str) -> list[str]:
    if given is None:
        return []
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{_kind(given)} is no series of links")
    raws = list(islice(given, MAX_LINKS + 1))
    if len(raws) > MAX_LINKS:
        raise ValueError(f"more than {MAX_LINKS} links")
    if not all(isinstance(raw, str) for raw in raws):
        raise TypeError("links must be texts")
    return [url for raw in dict.fromkeys(raws) if (url := canonicalize(raw, base)) is not None]


def _facts(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"{_kind(given)} is no mapping of facts")
    written = msgspec.json.encode(dict(given))
    if len(written) > MAX_EXTRA_BYTES:
        raise ValueError(f"{len(written)} bytes of JSON; at most {MAX_EXTRA_BYTES} are kept")
    found: dict[str, Any] = msgspec.json.decode(written)
    if not _is_within(found, MAX_DEPTH):
        raise ValueError(f"objects and arrays more than {MAX_DEPTH} deep")
    return found


def _is_within(value: Any, levels: int) -> bool:
    """Tell whether no more than ``levels`` objects and arrays are in each other."""
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_within(one, levels - 1) for one in inner)


def _kind(value: Any) -> str:
    """Return what is said of a value: not itself, since it may be a secret."""
    return f"a value of type {type(value).__name__}"
