"""Waiting for something to become true, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Answer = TypeVar("Answer")


async def until(ask: Callable[[], Awaitable[Answer]], *, within_s: float = 60.0) -> Answer:
    """Return the first true answer; fails the test when there is none in time."""
    deadline = time.monotonic() + within_s
    while not (answer := await ask()):
        assert time.monotonic() < deadline, f"did not happen within {within_s} s"
        await asyncio.sleep(0.02)
    return answer


async def until_true(holds: Callable[[], object], *, within_s: float = 60.0) -> None:
    """Return once ``holds()`` is true; fails the test when it stays false."""

    async def ask() -> bool:
        return bool(holds())

    await until(ask, within_s=within_s)
