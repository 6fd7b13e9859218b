"""The worker: owns tasks by their locks, fetches, parses and commits.

``program`` is the process, one session after the other; ``node`` is one session (membership, what
to own); ``owned`` holds the tasks it owns, ``task`` runs one of them; ``jobs`` says which jobs it
can do, ``job`` holds what a process needs once per job;
``page`` takes one URL from claim to settlement (``reading``: what a page says, ``plugins``: what a
job's plugins add); ``committer`` writes settlements, outlinks first;
``health`` measures how the process fares (``condition``: fit or not, ``weight``: its share);
``warc`` keeps the responses of jobs that ask for it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from common.model.ids import NodeId
from common.plugins.loading import PluginSet
from common.runtime.settings import Settings

__all__ = ["run"]


async def run(
    settings: Settings,
    *,
    node_id: NodeId,
    lease_ttl_s: float,
    concurrency: int,
    http: str | None,
    stop: asyncio.Event,
    warc_dir: Path | None = None,
    memory_limit_bytes: int | None = None,
    plugins: PluginSet | None = None,
) -> None:
    """Be a worker until ``stop`` is set, then drain; see :func:`worker.program.run`."""
    # Importing the package stays cheap: the command line uses its rules for addresses.
    from worker import program  # noqa: PLC0415

    await program.run(
        settings,
        node_id=node_id,
        lease_ttl_s=lease_ttl_s,
        concurrency=concurrency,
        http=http,
        stop=stop,
        warc_dir=warc_dir,
        memory_limit_bytes=memory_limit_bytes,
        plugins=plugins,
    )
