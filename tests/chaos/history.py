"""What was seen of a run, from outside the crawler: all that the judge knows.

Times called ``at`` are wall-clock seconds of the observer; those of requests and faults are the
machine's monotonic clock. A run's history is kept as ``history.json`` in its folder and can be
judged again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tests.chaos.graph import Graph, Ref


class Request(msgspec.Struct, frozen=True):
    """A request in the site's own log."""

    host: int
    path: str
    started: float
    ended: float
    status: int
    complete: bool
    lag_s: float = 0.0
    """How late the site's process was lately."""
    connection: int = 0


class Change(msgspec.Struct, frozen=True):
    """A change of a key in etcd."""

    revision: int
    key: str
    """Below the cluster's prefix."""
    created: int
    """Create revision; 0 for a deletion."""
    at: float
    value: Any = None


class Write(msgspec.Struct, frozen=True):
    """A script that changed something in Redis, in the order in which the server ran them."""

    at: float
    """By the server's clock."""
    node: str
    script: str
    shard: int
    token: int | None
    """The fencing token it carried, if it acts as an owner."""
    term: int | None
    """The term it carried, if it acts as the master (0: command line)."""
    run: int
    """Which life of the server."""


class Result(msgspec.Struct, frozen=True):
    """An entry of a shard's results stream, as it stands at the end."""

    shard: int
    id: str
    record: dict[str, Any]


class Fault(msgspec.Struct, frozen=True):
    """A fault as it was injected and healed."""

    name: str
    target: str
    started: float
    ended: float
    damages: bool = False
    """It destroys data: the job must be reported damaged."""


class History(msgspec.Struct, kw_only=True):
    """One run."""

    seed: int
    profile: str
    graph: Graph
    ports: list[int]
    delay_s: float
    per_host: int
    max_pages: int | None = None
    requests: list[Request] = []
    changes: list[Change] = []
    writes: list[Write] = []
    results: list[Result] = []
    exported: list[dict[str, Any]] = []
    faults: list[Fault] = []
    added: list[Ref] = []
    """Seeds that were added while the job ran."""
    maybe_added: list[Ref] = []
    """The same, where the command did not say that they were."""
    final: dict[str, Any] = {}
    """``job show`` at the end."""
    died: list[str] = []
    """Nodes that ended by themselves, and how."""
    tracebacks: list[str] = []
    """Of the nodes' logs."""
    wall_minus_monotonic: float = 0.0
