"""Every test of the fetcher runs on both event loops in use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest_asyncio
import uvloop

from tests.support.fetching import Fetching


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture
async def fetch() -> AsyncIterator[Fetching]:
    fetching = Fetching()
    yield fetching
    await fetching.close()
