"""Connections through a SOCKS5 proxy, for the few jobs that have one."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp.client_proto import ResponseHandler
from aiohttp_socks import ProxyConnector

from worker.wire import Wire


class SocksConnector(ProxyConnector):
    """Connects through the proxy, with our own connections in place of the package's."""

    async def _connect_via_proxy(
        self, *arguments: Any, **options: Any
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        transport, made = await super()._connect_via_proxy(*arguments, **options)
        wire = Wire(asyncio.get_running_loop(), holds=made)
        transport.set_protocol(wire)
        wire.connection_made(transport)
        return transport, wire
