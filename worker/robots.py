"""robots.txt of each host, fetched once a process and kept (RFC 9309).

Fetching it is a request to the host like any other: it uses the slot of the claim that needed it,
and the host's delay counts from its end.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

import structlog

from common.model.ids import HostKey
from common.model.job import JobSpec
from common.model.records import ErrorInfo
from common.web import url
from common.web.retry import ErrorCode
from common.web.robots import MAX_BYTES, RobotsPolicy, RobotsRules, policy_for_status
from worker.fetch import Fetcher
from worker.fetched import Fetched
from worker.pacer import Pacer
from worker.patience import Patience
from worker.visit import Visit

KEEP_S = 24 * 3600.0
"""RFC 9309, 2.4: not longer than a day."""
ASK_AGAIN_S = 5.0
"""How long "unavailable" stands for the other URLs of a host, before one of them asks again."""
WAIT_S = 1.0
"""How long a page waits for robots.txt that another one has asked for."""
REST_S = 1.0
"""How long a host rests at least whose robots.txt is still awaited: its pages hold no places."""
LEAD_S = 0.05
"""How long before its host's time a URL is claimed, at most: a claim and a permit take a while."""
LEAD_SHARE = 0.1
"""Of the delay, likewise."""
MAX_HOPS = 5
"""RFC 9309, 2.3.1.2."""
MAX_HOSTS = 50_000

log = structlog.get_logger()


class Robots(NamedTuple):
    """What a host's robots.txt says, or why that is not known."""

    rules: RobotsRules | None
    error: ErrorInfo | None
    delay_s: float
    """Between requests to the host: the job's delay, or a longer Crawl-delay."""
    asked: float | None
    """Monotonic time at which the last request for it ended, when this call made one."""
    until: float = math.inf
    """Monotonic time at which it is asked for again."""
    rest_s: float = 0.0
    """For how long the host asked to be left alone, when this call asked for it."""


class Later(NamedTuple):
    """Nothing is known yet, and the claim is to be given back."""

    wait_s: float
    """After which to come again."""


class _Entry(NamedTuple):
    rules: RobotsRules | None
    error: ErrorInfo | None
    expires: float
    rest_s: float = 0.0


class RobotsCache:
    """The robots rules of one job in one process."""

    def __init__(self, fetcher: Fetcher, spec: JobSpec, pacer: Pacer, patience: Patience) -> None:
        self._fetcher = fetcher
        self._spec = spec
        self._pacer = pacer
        self._patience = patience
        self._entries: dict[HostKey, _Entry] = {}
        self._asking: dict[HostKey, asyncio.Event] = {}
        self._allow_all = RobotsRules.allow_all()
        self._live: dict[HostKey, float] = {}
        """Delays set for single hosts while the job runs, in place of the job's."""

    def delay_s(self, host: HostKey) -> float:
        """Return the delay of a host, as far as it is known."""
        entry = self._entries.get(host)
        return self._delay_of(host, entry.rules if entry else None)

    def lead_s(self, host: HostKey) -> float:
        """Return how long before its host's time a URL may be claimed, so that its permit is there.

        Not at all where its rules are not known here: our permits would be for the job's delay,
        and only the frontier knows that its last request, by another worker, asked for a longer.
        """
        rules = None
        if self._spec.robots != "ignore":
            entry = self._entries.get(host)
            if entry is None or entry.expires < time.monotonic():
                return 0.0
            rules = entry.rules
        return min(LEAD_S, LEAD_SHARE * self._delay_of(host, rules))

    def take_delays(self, hosts: Iterable[HostKey], delays_ms: Mapping[HostKey, int]) -> None:
        """Take over which of these hosts have a delay of their own now."""
        if not delays_ms and not self._live:
            return
        for host in hosts:
            if host in delays_ms:
                self._live[host] = delays_ms[host] / 1000
            else:
                self._live.pop(host, None)

    def _delay_of(self, host: HostKey, rules: RobotsRules | None) -> float:
        asked = rules.crawl_delay_s if rules else None
        if self._patience.is_down(host):
            return 0.0  # nothing is sent
        return max(self._own_delay(host), asked or 0.0, self._patience.delay_s(host))

    def _own_delay(self, host: HostKey) -> float:
        return self._live.get(host, self._spec.delay)

    def known(self, host: HostKey) -> Robots | None:
        """Return what is known of a host without asking."""
        if self._spec.robots == "ignore":
            return Robots(self._allow_all, None, self._delay_of(host, None), None)
        entry = self._entries.get(host)
        if entry is None or entry.expires < time.monotonic():
            return None
        delay_s = self._delay_of(host, entry.rules)
        return Robots(entry.rules, entry.error, delay_s, None, entry.expires)

    async def ask(
        self, host: HostKey, *, is_allowed: Callable[[], bool], trusted: bool
    ) -> Robots | Later:
        """Return a host's rules, fetching robots.txt unless another page of it does so just now.

        Args:
            host: whose rules.
            is_allowed: asked just before each request; False = give up.
            trusted: whether the job's headers and cookies may be sent there.
        """
        while (running := self._asking.get(host)) is not None:
            try:
                async with asyncio.timeout(WAIT_S):
                    await running.wait()
            except TimeoutError:
                return Later(REST_S)  # a page that waits holds a place
            if known := self.known(host):
                return known
        if known := self.known(host):
            return known
        done = self._asking[host] = asyncio.Event()
        try:
            entry = await self._fetch(host, is_allowed, trusted=trusted)
            if isinstance(entry, Later):
                return entry
            if len(self._entries) >= MAX_HOSTS:
                self._entries.pop(next(iter(self._entries)))
            self._entries[host] = entry
            delay_s = self._delay_of(host, entry.rules)
            now = time.monotonic()
            return Robots(entry.rules, entry.error, delay_s, now, rest_s=entry.rest_s)
        finally:
            del self._asking[host]
            done.set()

    async def _fetch(
        self, host: HostKey, is_allowed: Callable[[], bool], *, trusted: bool
    ) -> _Entry | Later:
        target, origin = host + "/robots.txt", host
        for _ in range(MAX_HOPS + 1):
            at = url.host_key(target)
            with self._pacer.visit(at, self.delay_s(at)) as visit:
                turn = self._turn(visit, at, is_allowed)
                if not await turn(0.0):
                    return Later(max(REST_S, visit.wait_s))
                fetched = await self._fetcher.fetch(
                    target,
                    wait_before_hop=turn,
                    is_bounce=lambda hop, target=target: url.canonicalize(hop) == target,  # type: ignore[misc]
                    trusted=trusted and at == origin,
                    any_type=True,
                    max_body=MAX_BYTES,
                    cut=True,
                    route=visit.route,
                )
                visit.ended(pause_s=fetched.retry_after_s)
            self._heard(at, fetched)
            if fetched.abandoned:
                return Later(max(REST_S, visit.wait_s))
            entry = self._judge(host, fetched)
            if entry is not None:
                return entry
            hop = url.canonicalize(fetched.location) if fetched.location else None
            if hop is None:
                break
            target = hop
        # More than five hops, or one that leads nowhere: as if there were no rules (RFC 9309,
        # section 2.3.1.2).
        return self._keep(self._allow_all)

    def _heard(self, host: HostKey, fetched: Fetched) -> None:
        code, status = fetched.error.code if fetched.error else None, fetched.status
        if code is None and status and policy_for_status(status) is RobotsPolicy.UNAVAILABLE:
            code = ErrorCode.ROBOTS_UNAVAILABLE
        elapsed_s = fetched.elapsed_ms / 1000
        self._patience.heard(host, status=status, error_code=code, elapsed_s=elapsed_s)

    def _judge(self, host: HostKey, fetched: Fetched) -> _Entry | None:
        """Return what an answer means; None = follow its redirect."""
        if fetched.error is not None:
            return _Entry(None, fetched.error, time.monotonic() + ASK_AGAIN_S)
        if fetched.status is None:
            return self._keep(self._allow_all)
        match policy_for_status(fetched.status):
            case RobotsPolicy.PARSE:
                rules = RobotsRules.parse(fetched.body, user_agent=self._spec.user_agent)
                return self._keep(rules)
            case RobotsPolicy.FOLLOW:
                return None
            case RobotsPolicy.ALLOW_ALL:
                return self._keep(self._allow_all)
            case RobotsPolicy.UNAVAILABLE:
                log.info("robots.unavailable", host=host, status=fetched.status)
                message = f"robots.txt answered {fetched.status}; nothing is fetched until it does"
                error = ErrorInfo(code=ErrorCode.ROBOTS_UNAVAILABLE, message=message)
                rest_s = fetched.retry_after_s
                return _Entry(None, error, time.monotonic() + max(ASK_AGAIN_S, rest_s), rest_s)

    def _turn(
        self, visit: Visit, host: HostKey, is_allowed: Callable[[], bool]
    ) -> Callable[[float], Awaitable[bool]]:
        async def wait(_ended_at: float) -> bool:
            # However long the delay, a turn comes.
            latest = time.monotonic() + self._spec.timeout + 2 * self.delay_s(host)
            if not await visit.next(before=latest):
                return False
            if not is_allowed():
                visit.unused()
                return False
            return True

        return wait

    def _keep(self, rules: RobotsRules) -> _Entry:
        return _Entry(rules, None, time.monotonic() + KEEP_S)
