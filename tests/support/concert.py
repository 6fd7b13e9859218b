"""Scenarios that run together in one event loop: each is a test, all cost the time of the longest.

``Concert.test`` makes a test of a coroutine function. The first test that is run starts all of its
module's scenarios; each test then fails or passes by what became of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

AT_ONCE: Final = 8
"""Scenarios at one time; with all of a module a busy machine would miss their deadlines."""


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
    soloists: dict[str, Scenario] = field(default_factory=dict)
    """Those that keep the processor busy: they run after the others, one by one."""

    def alone(self, scenario: Scenario) -> Callable[[Any], None]:
        """Make a test of a scenario that would disturb the others."""
        return self._test(scenario, self.soloists)

    def test(self, scenario: Scenario) -> Callable[[Any], None]:
        """Make a test of a scenario."""
        return self._test(scenario, self.scenarios)

    def _test(self, scenario: Scenario, group: dict[str, Scenario]) -> Callable[[Any], None]:
        name = scenario.__name__
        group[name] = scenario

        def test(ends: Mapping[str, BaseException | None]) -> None:
            if (error := ends[name]) is not None:
                raise error

        test.__name__, test.__doc__ = name, scenario.__doc__
        return test

    def run(self, stage: Callable[[str], Stage]) -> dict[str, BaseException | None]:
        """Run all; return what each raised."""

        async def together(group: Mapping[str, Scenario]) -> list[BaseException | None]:
            room = asyncio.Semaphore(AT_ONCE)

            async def perform(name: str, scenario: Scenario) -> None:
                async with room:
                    await scenario(stage(name))

            performing = (perform(name, one) for name, one in group.items())
            return await asyncio.gather(*performing, return_exceptions=True)

        ends = dict(zip(self.scenarios, asyncio.run(together(self.scenarios)), strict=True))
        for name, one in self.soloists.items():
            ends[name] = asyncio.run(together({name: one}))[0]
        return ends
