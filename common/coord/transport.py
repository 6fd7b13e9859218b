"""Sends calls to whichever member answers, as the user given, with the outcome known.

One member is current. Whatever does not answer in time makes the next one current, so a call that
may be repeated reaches a healthy member after one attempt. The members' order is shuffled once per
client, which spreads processes over them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tenacity import (
    AsyncRetrying,
    retry_if_exception,
    stop_before_delay,
    wait_random_exponential,
)

from common.coord import failures
from common.coord.jitter import shuffled
from common.coord.member import EtcdOptions, Member, credentials
from common.coord.wire import messages
from common.model.errors import CoordUnavailable, CrawlerError, UnknownOutcome

CALL_TIMEOUT_S: Final = 5.0
"""How long a call is tried over all members."""
ATTEMPT_TIMEOUT_S: Final = 2.0
"""How long one member may take; an etcd election takes about as long."""

_SHORTEST_S: Final = 0.01
# A member that lost its leader then refuses at once instead of letting the call wait.
_NEEDS_LEADER: Final = ("hasleader", "true")

Send = Callable[[Member, dict[str, Any]], Awaitable[Any]]


class Transport:
    """The members of one etcd cluster; belongs to the event loop it was opened in."""

    def __init__(self, options: EtcdOptions) -> None:
        self.members: list[Member] = []
        self._options = options
        self._current = 0
        self._token: str | None = None
        self._login = asyncio.Lock()
        self._is_closed = False

    def open(self) -> None:
        """Make a channel to each endpoint; they connect when they are first used."""
        secret = credentials(self._options)
        endpoints = shuffled(self._options.endpoints)
        self.members = [Member(endpoint, secret) for endpoint in endpoints]

    async def close(self) -> None:
        """Close every channel; calls still under way end as unavailable."""
        self._is_closed = True
        await asyncio.gather(*(member.close() for member in self.members))

    async def call(
        self,
        send: Send,
        *,
        is_write: bool = False,
        timeout_s: float = CALL_TIMEOUT_S,
        attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
    ) -> Any:
        """Try ``send`` on one member after the other while it surely was not carried out.

        Raises:
            CoordUnavailable: nobody answered; surely not applied.
            UnknownOutcome: a write was sent and not answered.
            CrawlerError: etcd refused it; see :mod:`common.coord.failures`.
        """
        deadline = time.monotonic() + timeout_s

        async def attempt() -> Any:
            left_s = max(deadline - time.monotonic(), _SHORTEST_S)
            limit_s = min(attempt_timeout_s, left_s)
            return await self.attempt(send, is_write=is_write, timeout_s=limit_s)

        retrying = AsyncRetrying(
            retry=retry_if_exception(self._is_worth_another_try),
            stop=stop_before_delay(timeout_s),
            wait=wait_random_exponential(multiplier=0.05, max=0.5),
            reraise=True,
        )
        return await retrying(attempt)

    async def attempt(self, send: Send, *, is_write: bool = False, timeout_s: float) -> Any:
        """Try ``send`` once, on the current member; raises as :meth:`call` does."""
        deadline = time.monotonic() + timeout_s
        member = self._member()
        try:
            await member.connect(timeout_s=timeout_s)
            token = await self._authenticated(member)
            try:
                return await send(member, self._call_options(token, deadline))
            except messages.AioRpcError as error:
                if token is None or not failures.is_token_invalid(error):
                    raise
            # The call was not executed: etcd restarted and knows the token no more. Once is
            # enough; a token refused when it is new is a wrong setting.
            self.forget(token)
            token = await self._authenticated(member)
            return await send(member, self._call_options(token, deadline))
        except (messages.AioRpcError, CoordUnavailable) as error:
            raise self.failed(member, error, is_write=is_write) from error
        except asyncio.CancelledError:
            # gRPC cancels what is under way on a channel that is closed.
            if self._is_closed and not _is_cancelled():
                raise CoordUnavailable(f"etcd at {member.endpoint}: the client is closed") from None
            raise

    async def stream(self, *, timeout_s: float) -> tuple[Member, dict[str, Any]]:
        """Return a connected member and the options to open a long-lived stream on it."""
        member = self._member()
        try:
            await member.connect(timeout_s=timeout_s)
        except CoordUnavailable as error:
            raise self.failed(member, error) from error
        token = await self._authenticated(member)
        return member, self._call_options(token, None)

    def failed(self, member: Member, error: Exception, *, is_write: bool = False) -> CrawlerError:
        """Turn a failure on ``member`` into our error, and turn to another member if it is down."""
        failure = (
            error
            if isinstance(error, CrawlerError)
            else failures.translated(error, endpoint=member.endpoint, is_write=is_write)
        )
        if isinstance(failure, CoordUnavailable | UnknownOutcome) and member is self._member():
            self._current = (self._current + 1) % len(self.members)
        return failure

    def forget(self, token: str | None = None) -> None:
        """Authenticate anew before the next call, unless somebody did so since ``token``."""
        if token is None or token == self._token:
            self._token = None

    def _is_worth_another_try(self, error: BaseException) -> bool:
        return isinstance(error, CoordUnavailable) and not self._is_closed

    def _member(self) -> Member:
        if self._is_closed or not self.members:
            raise CoordUnavailable("the etcd client is not open")
        return self.members[self._current]

    def _call_options(self, token: str | None, deadline: float | None) -> dict[str, Any]:
        metadata = [_NEEDS_LEADER] if token is None else [_NEEDS_LEADER, ("token", token)]
        if deadline is None:
            return {"metadata": metadata}
        return {"metadata": metadata, "timeout": max(deadline - time.monotonic(), _SHORTEST_S)}

    async def _authenticated(self, member: Member) -> str | None:
        """Return the token of the user given; None without one, or where etcd asks for none."""
        if self._options.user is None:
            return None
        async with self._login:
            if self._token is None:
                request = messages.AuthenticateRequest(
                    name=self._options.user, password=self._options.password or ""
                )
                try:
                    answer = await member.auth.Authenticate(request, timeout=ATTEMPT_TIMEOUT_S)
                except messages.AioRpcError as error:
                    if failures.is_auth_off(error):
                        return None
                    raise self.failed(member, error) from error
                self._token = answer.token
            return self._token


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
