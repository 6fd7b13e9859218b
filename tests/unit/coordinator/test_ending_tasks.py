"""What a candidate runs side by side ends together, and nothing it ended with goes unseen."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping
from typing import Any

import pytest

from common.model.errors import LeaseLost
from coordinator.master import _first_of


async def test_a_session_that_ends_several_tasks_at_once_leaves_no_unseen_error() -> None:
    """A master stopped past its lease said "Task exception was never retrieved" when it went on:
    its refreshing failed in the moment in which the lost session stopped its work from outside."""
    unseen: list[Mapping[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    lost = asyncio.Event()

    async def fail() -> None:
        await lost.wait()
        raise LeaseLost("the session is lost")

    async def work() -> None:
        await _first_of(fail(), asyncio.sleep(60))

    running = asyncio.create_task(_first_of(work(), lost.wait()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    lost.set()
    await running
    gc.collect()
    assert [] == unseen


async def test_a_second_cancellation_does_not_leave_anything_running() -> None:
    """Stopping what a master does was itself cut short: then it acted on while it was demoted."""
    ending, ended = asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ending.set()
            await asyncio.sleep(0.01)
            ended.set()

    running = asyncio.create_task(_first_of(slow_to_end(), asyncio.sleep(0)))
    await ending.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()


async def test_an_error_of_what_ends_first_is_raised() -> None:
    async def fail() -> None:
        raise LeaseLost("gone")

    with pytest.raises(LeaseLost):
        await _first_of(fail(), asyncio.sleep(60))
