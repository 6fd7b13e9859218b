"""Scenarios that run together in one event loop: each is a test, all cost the time of the longest.

``Concert.test`` makes a test of a coroutine function. The first test that is run starts all of its
module's scenarios; each test then fails or passes by what became of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class Stage(NamedTuple):
    """What every scenario is given."""

    etcd: str
    redis: str
    folder: Path
    """Its own."""
    cluster: str
    """A name nobody else uses."""


Scenario = Callable[[Stage], Awaitable[None]]


@dataclass
class Concert:
    """The scenarios of a module."""

    scenarios: dict[str, Scenario] = field(default_factory=dict)

    def test(self, scenario: Scenario) -> Callable[[Any], None]:
        name = scenario.__name__
        self.scenarios[name] = scenario

        def test(ends: Mapping[str, BaseException | None]) -> None:
            if (error := ends[name]) is not None:
                raise error

        test.__name__, test.__doc__ = name, scenario.__doc__
        return test

    def run(self, stage: Callable[[str], Stage]) -> dict[str, BaseException | None]:
        """Run all; return what each raised."""

        async def together() -> list[BaseException | None]:
            return await asyncio.gather(
                *(one(stage(name)) for name, one in self.scenarios.items()),
                return_exceptions=True,
            )

        return dict(zip(self.scenarios, asyncio.run(together()), strict=True))
