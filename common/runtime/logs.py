"""Logging to standard error: structlog over the standard library, as text or as JSON lines.

Events are constant dotted names, facts are keys. Standard output stays free for what a command
returns. Facts may come from the web (URLs, header values), so the text form replaces control
characters; JSON escapes them by itself.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog

from common.runtime.printable import printable

Event = structlog.typing.EventDict

_NOISY = ("asyncio", "aiohttp.access", "grpc", "urllib3")
"""Loggers of libraries that tell at "info" what is only of use when debugging them."""


def configure(level: str, format: str) -> None:  # noqa: A002  # the setting's name
    """Send the process's logs to standard error.

    Args:
        level: lowest level shown: debug, info, warning or error.
        format: ``text`` for people, ``json`` for machines (one object a line).
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: Any = structlog.processors.JSONRenderer() if format == "json" else _render_text
    handler = _StderrHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            foreign_pre_chain=shared,
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        # A cached logger would keep to what held when it was first used; nothing logs per page.
        cache_logger_on_first_use=False,
    )


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at the moment: a progress line may have taken it over."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # read anew for each record
        return sys.stderr


def _render_text(_logger: object, _method: str, event: Event) -> str:
    time = str(event.pop("timestamp", ""))
    level = str(event.pop("level", ""))
    name = printable(str(event.pop("event", "")))
    trace = event.pop("exception", None)
    facts = "".join(f" {key}={_shown(value)}" for key, value in event.items())
    line = f"{time} {level:<7} {name}{facts}"
    if trace is None:
        return line
    # A trace keeps its lines; whatever else is in it may quote the web.
    return "\n".join([line, *(printable(part) for part in str(trace).splitlines())])


def _shown(value: object) -> str:
    text = printable(value if isinstance(value, str) else repr(value))
    return repr(text) if not text or " " in text or "=" in text else text
