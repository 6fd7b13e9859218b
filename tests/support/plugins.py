"""Plugins that tests run, in this process and in workers of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint
from typing import Any, ClassVar, Final

from common.plugins.loading import GROUP, PluginSet
from crawlctl.plugins import JSON, JobInfo, Link, Plugin, Request, Response

FAULTS: Final[dict[str, Callable[[], Any]]] = {}
"""What happens on a page of this path (of its last part)."""


class Example(Plugin):
    """Uses every hook."""

    events: ClassVar[list[tuple[str, str]]] = []
    """What was opened and closed: (event, job)."""

    async def opened(self, job: JobInfo) -> None:
        self._job = job
        self.events.append(("opened", job.id))

    def closed(self) -> None:
        self.events.append(("closed", self._job.id))

    def refuse(self, link: Link) -> str | None:
        return "calendar" if "/calendar/" in link.url else None

    async def prepare(self, request: Request) -> Mapping[str, str]:
        await asyncio.sleep(0)
        return {"Accept-Language": "de", "X-Page": request.url}

    def parse(self, response: Response) -> Iterable[str]:
        if response.content_type == "application/json":
            yield from ("found", "/found#again", "calendar/2", "javascript:void(0)", "\udcff")

    async def enrich(self, response: Response) -> Mapping[str, JSON]:
        return {
            "status": response.status,
            "title": response.title,
            "links": len(response.links),
            "server": response.header("x-server"),
            "job": self._job.id,
        }


class Failing(Plugin):
    """Fails where FAULTS say so."""

    async def enrich(self, response: Response) -> Any:
        fault = FAULTS.get(response.url.rpartition("/")[2])
        answer = fault() if fault else None
        return await answer if asyncio.iscoroutine(answer) else answer


class BadHeaders(Plugin):
    """Would send requests astray."""

    def prepare(self, request: Request) -> Mapping[str, str]:
        return {"Host": "elsewhere.example"}


class Stubborn(Plugin):
    """Cannot be opened."""

    def opened(self, job: JobInfo) -> None:
        raise RuntimeError(f"no door for {job.plugin}")

    def refuse(self, link: Link) -> str | None:
        return None


class Slow(Plugin):
    """Is opened when it may be."""

    may_open: ClassVar[asyncio.Event]
    events: ClassVar[list[str]] = []

    async def opened(self, job: JobInfo) -> None:
        self.events.append("opening")
        await self.may_open.wait()
        self.events.append("opened")

    def closed(self) -> None:
        self.events.append("closed")

    def refuse(self, link: Link) -> str | None:
        return None


def plugins(**kinds: type[Plugin]) -> PluginSet:
    """Return these plugins as if they were installed under these names."""
    entries = {
        name: EntryPoint(name, f"{kind.__module__}:{kind.__name__}", GROUP)
        for name, kind in kinds.items()
    }
    return PluginSet(installed=lambda: entries)
