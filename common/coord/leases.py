"""Facts about leases that several parts ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from common.coord.client import Etcd

_AT_ONCE: Final = 32


async def ttls_s(etcd: Etcd, leases: Iterable[int]) -> dict[int, int | None]:
    """Return the seconds each lease has left; one call a distinct lease, many at a time."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def ask(lease: int) -> tuple[int, int | None]:
        async with limit:
            return lease, await etcd.lease_ttl_s(lease)

    return dict(await asyncio.gather(*(ask(lease) for lease in set(leases) - {0})))
