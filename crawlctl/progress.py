"""Progress on standard error: one updating line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from common.model.counters import answers
from crawlctl.show import duration, note, quantity, redraws

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

_PLAIN_EVERY_S = 5.0


class Progress(Protocol):
    """Shows how far a job is; a context manager that leaves the terminal clean."""

    def update(self, counters: Mapping[str, int]) -> None:
        """Show these counters."""
        ...

    def say(self, text: str) -> None:
        """Show what goes on where there is nothing to count yet."""
        ...

    def tell(self, text: str) -> None:
        """Show what is to stay on the terminal."""
        ...

    def __enter__(self) -> Self:
        """Begin."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the last line standing."""
        ...


def progress(*, quiet: bool) -> Progress:
    """Return what fits: nothing, a live line on a terminal, or plain lines."""
    if quiet:
        return _Silent()
    return _LiveLine() if redraws(sys.stderr) else _PlainLines()


class _Rate:
    """Pages a second over the last few updates; a job's mean would hide that it has stalled."""

    _WINDOW_S = 10.0

    def __init__(self) -> None:
        self.started = time.monotonic()
        self._points: list[tuple[float, int]] = []

    def line(self, counters: Mapping[str, int]) -> str:
        now = time.monotonic()
        points = [(at, pages) for at, pages in self._points if now - at <= self._WINDOW_S]
        self._points = [*points, (now, answers(counters))]
        first, pages = self._points[0]
        rate = (answers(counters) - pages) / (now - first) if now > first else 0.0
        again = f"{quantity(counters['revisits'], 'visit')} again, " if counters["revisits"] else ""
        fetched = quantity(counters["fetched"] + counters["not_modified"], "page")
        return (
            f"{fetched}, {again}{rate:.1f}/s, "
            f"{counters['queued'] + counters['delayed']} queued, "
            f"{counters['in_flight']} in flight, "
            f"{quantity(counters['failed'] + counters['dead'], 'error')}, "
            f"{duration(now - self.started)}"
        )


class _Silent:
    def update(self, counters: Mapping[str, int]) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def tell(self, text: str) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _PlainLines(_Silent):
    def __init__(self) -> None:
        self._rate = _Rate()
        self._next = self._rate.started + _PLAIN_EVERY_S

    def update(self, counters: Mapping[str, int]) -> None:
        line = self._rate.line(counters)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PLAIN_EVERY_S
            note(line)

    def say(self, text: str) -> None:
        note(text)

    def tell(self, text: str) -> None:
        note(text)


class _LiveLine(_Silent):
    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._rate = _Rate()
        self._console: Console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._live: Live = Live(console=self._console, auto_refresh=False, transient=False)

    def update(self, counters: Mapping[str, int]) -> None:
        self._show(self._rate.line(counters))

    def say(self, text: str) -> None:
        self._show(text)

    def tell(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(text))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _show(self, line: str) -> None:
        from rich.text import Text

        self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
