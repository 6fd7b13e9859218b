"""Chance in waiting times, so that many processes do not do the same thing at the same moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Final

_RETRY_S: Final = (0.05, 0.3)


def between_s(low_s: float, high_s: float) -> float:
    """Return a time between the two."""
    return random.uniform(low_s, high_s)  # noqa: S311  # spreads load; nothing secret


def shuffled(items: Iterable[str]) -> list[str]:
    """Return the items in an order of chance."""
    found = list(items)
    random.shuffle(found)
    return found


def backoff_s(failures: int, *, first_s: float, longest_s: float) -> float:
    """Return full jitter below a bound that doubles with every failure in a row."""
    return between_s(0, min(longest_s, first_s * 2 ** min(failures, 16)))


async def pause() -> None:
    """Wait a little before a call that failed is made again."""
    await asyncio.sleep(between_s(*_RETRY_S))
