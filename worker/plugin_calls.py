"""Calls hooks of plugins so that whatever they do is theirs: raise, wait for ever, cancel, block.

A hook that awaits does so in a task of its own: whether it cancels that or does not end when it is
cancelled, the page's task goes on, and only what this worker itself does to the page goes through.

A synchronous hook, or a part of one that awaits, stops the event loop until it returns, and nothing
here can help; one that took long is named in the log once it is back.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from worker.plugin_faults import PluginFaults

HOOK_S: Final = 30.0
"""How long a hook that awaits may take, unless the caller says otherwise."""

T = TypeVar("T")


class _Ended(NamedTuple):
    """How a hook, or a look at what it gave, ended."""

    value: Any = None
    error: BaseException | None = None


class HookCalls:
    """Calls the hooks of one job in one process."""

    def __init__(self, faults: PluginFaults) -> None:
        self._faults = faults
        self._running: set[asyncio.Task[_Ended]] = set()
        """Hooks that await; a loop alone does not keep their tasks."""

    async def run(
        self,
        name: str,
        hook: str,
        call: Callable[[], Any],
        check: Callable[[Any], Any] | None = None,
        *,
        within_s: float | None = None,
        late: str | None = None,
    ) -> Any:
        """Return what a hook gives, as ``check`` makes it.

        Raises:
            PluginFailed: it failed.
        """
        took = partial(self._faults.took, name, hook)
        ended = _tried(call, took)
        if ended.error is None and inspect.isawaitable(ended.value):
            within_s = HOOK_S if within_s is None else within_s
            late = late or f"not done within {within_s:g} s"
            waiting = _watched(_tried_awaiting(ended.value), took)
            running = asyncio.create_task(waiting, name=f"plugin {name}, {hook}")
            ended = await self._awaited(running, within_s=within_s, late=late)
        if ended.error is None and check is not None:
            ended = _tried(partial(check, ended.value), took)
        if ended.error is not None:
            raise self._faults.failed(name, hook, ended.error) from ended.error
        return ended.value

    async def _awaited(
        self, running: asyncio.Task[_Ended], *, within_s: float, late: str
    ) -> _Ended:
        """Return how a hook ends; one that is late is cancelled, and not waited for any more."""
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        try:
            await asyncio.wait([running], timeout=within_s)
            if running.done() and not running.cancelled():
                return running.result()
            return _Ended(error=TimeoutError(late))
        finally:
            running.cancel()


def _tried(call: Callable[[], Any], took: Callable[[float], None]) -> _Ended:
    began = time.monotonic()
    try:
        return _Ended(call())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a plugin raises is its page's fault
        return _Ended(error=error)
    finally:
        took(time.monotonic() - began)


async def _tried_awaiting(answer: Awaitable[Any]) -> _Ended:
    try:
        return _Ended(await answer)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - as above
        return _Ended(error=error)


async def _watched(work: Coroutine[Any, Any, T], took: Callable[[float], None]) -> T:
    """Return what comes of ``work``; ``took`` hears of the seconds between two of its waits."""
    return await _steps(work, took)


@types.coroutine
def _steps(work: Coroutine[Any, Any, T], took: Callable[[float], None]) -> Generator[Any, Any, T]:
    go: Callable[[], Any] = partial(work.send, None)
    while True:
        began = time.monotonic()
        try:
            waits_for = go()
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            took(time.monotonic() - began)
        try:
            go = partial(work.send, (yield waits_for))
        except BaseException as error:  # noqa: BLE001 - handed on, as "yield from" does
            go = partial(work.throw, error)
