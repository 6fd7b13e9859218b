"""What a worker process remembers about the scope of a job.

"In scope" holds for ever; "not in scope" is believed for some seconds, since a seed's redirect may
widen the scope. Nothing read before a widening is remembered after it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential

from common.frontier.scope import ScopeSet, trusted_key
from common.model.errors import FrontierUnavailable
from common.model.ids import HostKey
from common.web import scope, url

OUT_OF_SCOPE_S: Final = 5.0
MAX_VERDICTS: Final = 100_000
ASK_AT_ONCE: Final = 1000
"""Names looked up in one call; between calls the event loop does other things."""

_Argument = TypeVar("_Argument")
_Answer = TypeVar("_Answer")


class ScopeVerdicts:
    """The scope of one job, as one process sees it."""

    def __init__(
        self, scope_set: ScopeSet, kind: Literal["host", "domain", "prefix", "any"]
    ) -> None:
        self._set = scope_set
        self._kind: Literal["host", "domain", "prefix", "any"] = kind
        self.rule = f"scope: {kind}"
        """What refuses a link that is out of scope."""
        self._verdicts: dict[str, tuple[bool, float]] = {}
        self._widened = 0

    async def kept(self, links: Sequence[str]) -> list[str]:
        """Return the links that are in scope."""
        if self._kind == "any":
            return list(links)
        by_link = {link: self._name(link) for link in links}
        verdicts: dict[str, bool] = {}
        unknown = []
        for name in dict.fromkeys(by_link.values()):
            known = self._known(name)
            if known is None:
                unknown.append(name)
            else:
                verdicts[name] = known
        for start in range(0, len(unknown), ASK_AT_ONCE):
            verdicts |= await self._look_up(unknown[start : start + ASK_AT_ONCE])
        return [link for link, name in by_link.items() if verdicts[name]]

    async def widen(self, target: str) -> None:
        """Let the target of a seed's redirect join the scope."""
        key = scope.seed_scope_key(target, self._kind)
        if key is not None:
            await _patiently(self._set.add, [key])
            self._widened += 1
            self._verdicts.clear()

    async def is_trusted(self, host: HostKey) -> bool:
        """Tell whether headers and cookies of the job may be sent to a host: a seed's own."""
        name = trusted_key(url.authority_of(host + "/"))
        known = self._known(name)
        if known is None:
            (known,) = await self._ask([name])
            self._remember({name: known})
        return known

    def _name(self, link: str) -> str:
        return link if self._kind == "prefix" else url.host_key(link) + "/"

    def _known(self, name: str) -> bool | None:
        verdict = self._verdicts.get(name)
        if verdict is None or (not verdict[0] and verdict[1] < time.monotonic()):
            return None
        return verdict[0]

    async def _look_up(self, names: Sequence[str]) -> dict[str, bool]:
        widened = self._widened
        keys = {name: scope.scope_keys(name, self._kind) for name in names}
        asked = list(dict.fromkeys(key for some in keys.values() for key in some))
        answers = dict(zip(asked, await self._ask(asked), strict=True))
        found = {name: any(answers[key] for key in some) for name, some in keys.items()}
        if widened == self._widened:
            self._remember(found)
        return found

    async def _ask(self, keys: Sequence[str]) -> list[bool]:
        await asyncio.sleep(0)
        return await _patiently(self._set.contains, keys)

    def _remember(self, verdicts: dict[str, bool]) -> None:
        if len(self._verdicts) > MAX_VERDICTS:
            self._verdicts.clear()
        until = time.monotonic() + OUT_OF_SCOPE_S
        self._verdicts.update({name: (verdict, until) for name, verdict in verdicts.items()})


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
