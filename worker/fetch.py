"""One URL in, one classified answer out: the only part of crawlctl that talks to the web.

A :class:`Fetcher` serves one job in one worker process. It enforces what must hold on the wire:
time limits, the size of decoded bodies, accepted media types, and no connection to addresses that
are not public. Connections and cookies are kept for the whole job.

Invariants: ``fetch`` raises nothing but CancelledError; every failure has a code. It sends one
request for each leave it has: the call itself is the first, and each further one (a redirect back
to the same page, a kept connection that turned out dead, another address where the one chosen
cannot be reached) first asks ``wait_before_hop``.

Not promised: pacing, robots rules and retries are the caller's. Through a proxy only addresses
written in the URL itself are checked, since the proxy looks the names up.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

import aiohttp
import structlog
from msgspec.structs import replace
from multidict import CIMultiDict

from common.model.job import JobSpec
from common.model.records import ErrorInfo
from common.web.retry import ErrorCode
from worker.addresses import literal_private
from worker.dns import CHOSEN, Addresses, ChosenResolver, Resolver, Route
from worker.fetch_body import Body, Limits, read_body, text_field
from worker.fetch_errors import PrivateAddressFault, Waits, classify, is_stale_connection
from worker.fetch_urls import exact_url, location_of
from worker.fetched import Condition, Fetched
from worker.heavy import Load
from worker.stages import Stages
from worker.web_session import Answer, open_session, trusted_headers

if TYPE_CHECKING:
    from worker.warc_recorder import Recorder

MAX_HOPS: Final = 10
"""Redirects back to the same page that are followed inside one fetch."""

NEXT_ADDRESS_S: Final = 2.0
"""To connect to an address while another is left to try: time for that has to be left."""

_UNREACHED: Final = frozenset(
    (ErrorCode.CONNECT_REFUSED, ErrorCode.CONNECT_FAILED, ErrorCode.CONNECT_TIMEOUT)
)

_REDIRECT_LIMITS: Final = Limits(max_body=65_536, accept=(), cut=False)
"""A longer body of a redirect is not worth reading to keep the connection."""

_TOO_MANY_HOPS: Final = ErrorInfo(
    code=ErrorCode.TOO_MANY_REDIRECTS,
    message=f"the page redirected to itself more than {MAX_HOPS} times",
)

_log = structlog.get_logger()


class Fetcher:
    """Fetches URLs for one job. To be created inside the running event loop, and closed."""

    def __init__(
        self,
        spec: JobSpec,
        *,
        connections: int,
        stages: Stages | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Prepare; nothing is connected yet.

        Args:
            spec: The job's options; references to secrets are resolved here.
            connections: Most requests at one time, all hosts together; more wait inside ``fetch``,
                and that counts for their time limits.
            stages: Told how long the parts of a request take.
            recorder: Keeps every response that is received.

        Raises:
            UsageError: a header, cookie or proxy of the job is malformed, or a secret is missing.
        """
        self._limits = Limits(
            max_body=spec.max_body,
            accept=tuple(pattern.partition(";")[0].strip().lower() for pattern in spec.accept),
            cut=False,
            min_rate=spec.min_rate,
        )
        self._waits = Waits(total_s=spec.timeout, connect_s=min(spec.connect_timeout, spec.timeout))
        self._trusted_headers = trusted_headers(spec)
        self._has_proxy = spec.proxy is not None
        self._allow_private = spec.allow_private
        names = Resolver()
        self.addresses: Addresses | None = None
        """Which address each host is asked at, for a job that limits requests to addresses."""
        if spec.per_ip is not None:
            wait_s = self._waits.connect_s
            self.addresses = Addresses(names, allow_private=spec.allow_private, wait_s=wait_s)
        self._session = open_session(
            spec, connections=connections, resolver=ChosenResolver() if self.addresses else names
        )
        brief_s = min(NEXT_ADDRESS_S, self._waits.connect_s)
        self._brief = aiohttp.ClientTimeout(
            total=spec.timeout, connect=brief_s, sock_connect=brief_s
        )
        self._stages = Stages() if stages is None else stages
        self._recorder = recorder

    async def close(self) -> None:
        """Close every connection; fetches still running end with an error."""
        await self._session.close()

    async def fetch(
        self,
        url: str,
        *,
        wait_before_hop: Callable[[float], Awaitable[bool]],
        is_bounce: Callable[[str], bool],
        trusted: bool = False,
        headers: Mapping[str, str] | None = None,
        condition: Condition | None = None,
        any_type: bool = False,
        max_body: int | None = None,
        cut: bool = False,
        route: Route | None = None,
        load: Load | None = None,
    ) -> Fetched:
        """Request ``url`` and read the answer.

        Args:
            url: Canonical URL; its path and query are sent byte for byte.
            wait_before_hop: Called with the end of the last response (monotonic) before each
                further request; returns True once it may start, or False to give the fetch up.
            is_bounce: Tells whether a redirect's target is this same page (equal canonical URLs).
            trusted: The host is a seed's: the job's own headers and cookies are sent too.
            headers: Sent with these, in place of those of the same name.
            condition: Asked of the first request alone: what a redirect leads to is another page.
            any_type: Take any media type, whatever the job accepts (robots.txt, sitemaps).
            max_body: A size limit in place of the job's, in decoded bytes.
            cut: Keep the first ``max_body`` bytes of a longer body instead of failing.
            route: Says for each request which address it goes to; for a job with ``per_ip``.
            load: Asked for room as the body grows.
        """
        limits = self._limits
        if any_type or cut or max_body is not None:
            limits = self._limits_with(any_type=any_type, max_body=max_body, cut=cut)
        own = self._own_headers(headers) if trusted else None
        target = url
        hops = 0
        may_reconnect = True
        while True:
            fetched, is_stale = await self._request(target, limits, own, route, condition, load)
            if hops:
                fetched = replace(fetched, url=url, hops=hops)
            if is_stale and may_reconnect:
                may_reconnect = False
            elif route is not None and _is_unreached(fetched) and route.failed():
                if await wait_before_hop(fetched.ended_at):
                    continue
                return fetched
            elif fetched.location is None or not is_bounce(fetched.location):
                return fetched
            elif hops == MAX_HOPS:
                return replace(fetched, error=_TOO_MANY_HOPS)
            else:
                hops += 1
                condition = None
                may_reconnect = True
                target = fetched.location.partition("#")[0]
            if not await wait_before_hop(fetched.ended_at):
                return replace(fetched, abandoned=True)

    def _limits_with(self, *, any_type: bool, max_body: int | None, cut: bool) -> Limits:
        usual = self._limits
        return Limits(
            max_body=usual.max_body if max_body is None else max_body,
            accept=() if any_type else usual.accept,
            cut=cut,
            min_rate=usual.min_rate,
        )

    def _own_headers(self, further: Mapping[str, str] | None) -> Mapping[str, str] | None:
        return _merged(self._trusted_headers, further) if further else self._trusted_headers

    async def _send(self, url: str, own: Mapping[str, str] | None, route: Route | None) -> Answer:
        """Send a request; return once the header of its answer has come."""
        # Without a proxy, the address connected to is what counts.
        if self._has_proxy and not self._allow_private and literal_private(url):
            raise PrivateAddressFault
        chosen = None if route is None else CHOSEN.set(route.choice)
        is_brief = route is not None and route.has_next
        try:
            response = await self._session.get(
                exact_url(url),
                headers=own,
                allow_redirects=False,
                timeout=self._brief if is_brief else self._session.timeout,
            )
        finally:
            if chosen is not None:
                CHOSEN.reset(chosen)
        assert isinstance(response, Answer)
        return response

    async def _request(
        self,
        url: str,
        limits: Limits,
        own: Mapping[str, str] | None,
        route: Route | None,
        condition: Condition | None = None,
        load: Load | None = None,
    ) -> tuple[Fetched, bool]:
        """Send one request; return how it ended, and whether a kept connection turned out dead.

        Args:
            url: what for.
            limits: of the body.
            own: headers for this host alone.
            route: which address to connect to, where addresses are limited.
            condition: on which the page is wanted.
            load: asked for room as the body grows.
        """
        started_at = time.monotonic()
        answer: Answer | None = None
        location: str | None = None
        try:
            answer = await self._send(url, _joined(own, condition), route)
            self._stages.connect.add(answer.sent_at - started_at)
            self._stages.first_byte.add((header_at := time.monotonic()) - answer.sent_at)
            location = location_of(answer, url)
            wanted = limits if location is None else _REDIRECT_LIMITS
            body = await read_body(answer, wanted, load)
            ended_at = time.monotonic()
            self._stages.body.add(ended_at - header_at)
        except Exception as failure:  # noqa: BLE001 - hostile bytes meet a large library here
            ended_at = time.monotonic()
            if answer is None:
                self._stages.connect.add(ended_at - started_at)
            body = Body(failure=failure)
        finally:
            if answer is not None:
                answer.release()  # closes the connection unless the body was read to its end
        if location is not None and body.failure is not None:
            body = Body()  # a redirect is complete with its header: its body is of no matter
        fetched = self._fetched(url, answer, location, body, started_at, ended_at)
        if self._recorder is not None and answer is not None and not body.had_no_room:
            refers_to = condition.recorded_at if condition else None
            warc, recorded_at = await self._recorder.record(
                answer, fetched, own=own or (), cut=limits.cut, refers_to=refers_to
            )
            fetched = replace(fetched, warc=warc, recorded_at=recorded_at)
        return fetched, is_stale_connection(body.failure)

    def _fetched(
        self,
        url: str,
        answer: Answer | None,
        location: str | None,
        body: Body,
        started_at: float,
        ended_at: float,
    ) -> Fetched:
        return Fetched(
            url=url,
            final_url=url,
            status=None if answer is None else answer.status,
            reason=None if answer is None else answer.reason,
            headers=None if answer is None else answer.headers,
            content_type=None if answer is None else text_field(answer, "Content-Type"),
            location=location,
            body=body.content,
            truncated=body.truncated,
            had_no_room=body.had_no_room,
            ip=None if answer is None or self._has_proxy else answer.ip,
            error=None if body.failure is None else self._named(body.failure, answer),
            is_conditional=answer is not None and _is_conditional(answer),
            started_at=started_at,
            ended_at=ended_at,
        )

    def _named(self, failure: Exception, answer: Answer | None) -> ErrorInfo:
        error = classify(failure, answered=answer is not None, waits=self._waits)
        if error.code == ErrorCode.INTERNAL_ERROR:
            _log.error("fetch.unexpected", exc_info=failure)
        return error


def _merged(one: Mapping[str, str] | None, other: Mapping[str, str]) -> Mapping[str, str]:
    """Return the fields of both; the other's take the place of those of the same name."""
    merged = CIMultiDict(one or ())
    merged.update(other)
    return merged


def _joined(own: Mapping[str, str] | None, condition: Condition | None) -> Mapping[str, str] | None:
    return own if condition is None else _merged(own, condition.headers)


def _is_conditional(answer: Answer) -> bool:
    sent = answer.request_info.headers
    return "If-None-Match" in sent or "If-Modified-Since" in sent


def _is_unreached(fetched: Fetched) -> bool:
    return fetched.error is not None and fetched.error.code in _UNREACHED
