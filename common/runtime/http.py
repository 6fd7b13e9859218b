"""Health and metrics of a node over HTTP (``--http HOST:PORT``); imported only when asked for.

``GET /health`` answers JSON, 200 when healthy and 503 when not; ``GET /metrics`` answers in the
Prometheus text format. Read-only and without authentication: bind it to an address only your
monitoring reaches.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from common.model.errors import SettingsError
from common.runtime.endpoints import host_and_port

log = structlog.get_logger()


class Health(NamedTuple):
    """Whether a node can do its work, and the facts behind it."""

    ok: bool
    facts: Mapping[str, object]


@asynccontextmanager
async def serve(
    address: str,
    *,
    health: Callable[[], Health],
    registry: CollectorRegistry | None = None,
) -> AsyncIterator[int]:
    """Serve while the context is open; yields the port (the one chosen, when 0 was given).

    Args:
        address: ``HOST:PORT``.
        health: called for each request; must not block.
        registry: the node's metrics; without one ``/metrics`` is empty.

    Raises:
        SettingsError: the address is malformed or cannot be bound.
    """
    host, port = host_and_port(address, where="--http", lowest_port=0)
    metrics = CollectorRegistry() if registry is None else registry

    async def answer_health(_request: web.Request) -> web.Response:
        state = health()
        body = msgspec.json.encode({"ok": state.ok, **state.facts})
        return web.Response(
            body=body, content_type="application/json", status=200 if state.ok else 503
        )

    async def answer_metrics(_request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(metrics), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    application = web.Application()
    application.add_routes([web.get("/health", answer_health), web.get("/metrics", answer_metrics)])
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            reason = error.strerror or str(error)
            raise SettingsError(f"--http: cannot listen on {address} ({reason})") from error
        bound = int(runner.addresses[0][1])
        log.info("http.listening", host=host, port=bound)
        yield bound
    finally:
        await runner.cleanup()
