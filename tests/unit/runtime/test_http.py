"""Health and metrics over real HTTP."""

from __future__ import annotations

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from common.model.errors import SettingsError
from common.runtime.http import Health, serve


async def test_health_and_metrics_are_served_while_the_context_is_open() -> None:
    registry = CollectorRegistry()
    Counter("crawlctl_pages", "Pages fetched.", registry=registry).inc(3)
    state = {"ok": True}

    def health() -> Health:
        return Health(state["ok"], {"role": "worker"})

    async with (
        serve("127.0.0.1:0", health=health, registry=registry) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        async with session.get("/health") as response:
            assert response.status == 200
            assert await response.json() == {"ok": True, "role": "worker"}
        async with session.get("/metrics") as response:
            assert response.headers["Content-Type"].startswith("text/plain")
            assert "crawlctl_pages_total 3.0" in await response.text()
        state["ok"] = False
        async with session.get("/health") as response:
            assert response.status == 503


async def test_an_address_in_use_is_named() -> None:
    def health() -> Health:
        return Health(ok=True, facts={})

    async with serve("127.0.0.1:0", health=health) as port:
        with pytest.raises(SettingsError, match=f"--http: cannot listen on 127.0.0.1:{port}"):
            async with serve(f"127.0.0.1:{port}", health=health):
                pass
