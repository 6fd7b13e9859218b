"""The master: elected among equals, it observes, plans purely and acts in guarded writes.

``facts`` are the values it decides from; ``assign`` with ``placement``, ``completion``, ``budget``
and ``plan`` decide and do no I/O; ``observe`` looks, ``act`` carries out single steps, ``master``
is the loop with its election. The master is never on the path of a URL: workers go on without one,
and what it decides is refused where it is written once its term or the job's revision is older than
another's.
"""

from __future__ import annotations

import asyncio

from common.runtime.settings import Settings

__all__ = ["run"]


async def run(
    settings: Settings, *, node_id: str, lease_ttl_s: float, http: str | None, stop: asyncio.Event
) -> None:
    """Be a candidate, and the master when elected, until ``stop`` is set.

    Raises:
        ServiceUnavailable: etcd or Redis cannot be reached at the start.
        RefusedError: a live node has this id.
    """
    from coordinator.master import run as live  # noqa: PLC0415  # importing the package stays cheap

    await live(settings, node_id=node_id, lease_ttl_s=lease_ttl_s, http=http, stop=stop)
