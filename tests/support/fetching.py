"""Fetches for tests: one fetcher per set of job options, as the pages of a job share one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from common.model.job import JobSpec
from worker.fetch import Fetcher
from worker.fetched import Fetched


async def at_once(_ended_at: float) -> bool:
    """Let every further request start at once."""
    return True


class Fetching:
    """Fetches URLs of loopback servers; to be closed."""

    def __init__(self) -> None:
        self._fetchers: dict[str, Fetcher] = {}

    async def __call__(
        self,
        url: str,
        *,
        spec: Mapping[str, Any] | None = None,
        wait_before_hop: Callable[[float], Awaitable[bool]] = at_once,
        is_bounce: Callable[[str], bool] | None = None,
        **options: Any,
    ) -> Fetched:
        """Fetch with a job of these options; by default a bounce is a redirect to an equal URL."""
        wanted = {"allow_private": True, "timeout": 5.0} | dict(spec or {})
        fetcher = self._fetchers.get(str(wanted))
        if fetcher is None:
            fetcher = self._fetchers[str(wanted)] = Fetcher(JobSpec(**wanted), connections=8)
        return await fetcher.fetch(
            url,
            wait_before_hop=wait_before_hop,
            is_bounce=is_bounce or (lambda target: target == url),
            **options,
        )

    async def close(self) -> None:
        for fetcher in self._fetchers.values():
            await fetcher.close()


def code_of(fetched: Fetched) -> str | None:
    """Return the error's code as plain text, or None."""
    return None if fetched.error is None else str(fetched.error.code)
