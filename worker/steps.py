"""Going through long lists without stopping the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, TypeVar

STEP: Final = 500
"""Links looked at before the event loop may do other things: about two milliseconds."""

_One = TypeVar("_One")


async def in_steps(found: Sequence[_One]) -> AsyncIterator[Sequence[_One]]:
    """Yield a list piece by piece; in between the event loop does other things."""
    for start in range(0, len(found), STEP):
        if start:
            await asyncio.sleep(0)
        yield found[start : start + STEP]
