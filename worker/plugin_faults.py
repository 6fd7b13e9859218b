"""What goes wrong in plugins: counted, and logged now and then with the traceback of the latest."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from common.runtime.printable import printable

BLOCKS_S: Final = 1.0
"""How long the event loop may stand still in a hook before the log names it."""
_MAX_MESSAGE_CHARS: Final = 300
_LOG_EVERY_S: Final = 600.0
_LOG_FRAMES: Final = 10
_MAX_TRACE_CHARS: Final = 10_000

log = structlog.get_logger()


class PluginFailed(Exception):
    """A hook of a plugin failed; says which and how, in one line."""

    def __init__(self, plugin: str, said: str) -> None:
        super().__init__(said)
        self.plugin = plugin
        """Its name."""


class PluginFaults:
    """What went wrong in the plugins of one worker process."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        """By plugin and hook."""
        self._silent_until: dict[tuple[str, str, str], float] = {}

    def note(self, plugin: str, hook: str, error: BaseException) -> None:
        """Count a fault, and log it unless one of that hook was logged a short while ago."""
        self.counts[plugin, hook] += 1
        if self._may_log("failed", plugin, hook):
            log.error(
                "plugin.failed", plugin=plugin, hook=hook, so_far=self.counts[plugin, hook],
                silent_for_s=_LOG_EVERY_S, exception=_trace(error),
            )  # fmt: skip

    def failed(self, plugin: str, hook: str, error: BaseException) -> PluginFailed:
        """Note a fault, and return what is to be said of it."""
        self.note(plugin, hook, error)
        said = " ".join(_written(traceback.format_exception_only, error).split())
        message = f"plugin {plugin}, {hook}: {printable(said)[:_MAX_MESSAGE_CHARS]}"
        return PluginFailed(plugin, message)

    def took(self, plugin: str, hook: str, seconds: float) -> None:
        """Log a hook in which the event loop stood still for long, likewise."""
        if seconds >= BLOCKS_S and self._may_log("blocked", plugin, hook):
            log.warning(
                "plugin.blocked_the_worker", plugin=plugin, hook=hook, seconds=round(seconds, 1),
                silent_for_s=_LOG_EVERY_S, remedy="await what takes long, or use a thread",
            )  # fmt: skip

    def _may_log(self, what: str, plugin: str, hook: str) -> bool:
        which, now = (what, plugin, hook), time.monotonic()
        if self._silent_until.get(which, 0.0) > now:
            return False
        self._silent_until[which] = now + _LOG_EVERY_S
        return True


def _trace(error: BaseException) -> str:
    whole = partial(traceback.format_exception, limit=-_LOG_FRAMES)
    return _written(whole, error)[-_MAX_TRACE_CHARS:]


def _written(write: Callable[[BaseException], list[str]], error: BaseException) -> str:
    """Return an exception as text; its parts are a plugin's, and may raise themselves."""
    try:
        return "".join(write(error))
    except Exception:  # noqa: BLE001 - whatever they raise
        return f"{type(error).__name__}, of which nothing more can be written"
