"""A node as it describes itself to the cluster, and which jobs a worker can do.

What a job needs and what a worker brings are compared here alone: by the master, which gives no
task to a worker that cannot do it, and by the commands that say why a job waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, Literal

import msgspec

from common.model.job import JobSpec

WARC: Final = "warc"
"""The ability to store responses: the worker has a folder for them."""


class NodeState(StrEnum):
    """Where a node stands in its life."""

    REGISTERED = "registered"
    READY = "ready"
    BUSY = "busy"
    DEGRADED = "degraded"
    """It finishes what it has and takes nothing new, for the reasons it gives."""
    DRAINING = "draining"
    OFFLINE = "offline"
    ACTIVE = "active"
    """The acting master."""
    STANDBY = "standby"
    """A candidate that would be master."""


ELIGIBLE: Final = frozenset({NodeState.REGISTERED, NodeState.READY, NodeState.BUSY})
"""States of a worker that takes new tasks."""


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself."""

    id: str
    role: Literal["master", "worker"]
    state: str
    """One of :class:`NodeState`."""
    weight: float = 1.0
    """Its share of the tasks beside the others'; worker.weight says how it follows the load."""
    load: dict[str, float] = {}
    """Figures by name: cpu, memory_bytes, loop_lag_s; of a worker also in_flight and so on."""
    stages: dict[str, float] = {}
    """Of a worker: how many pages were in each stage of their way, on average since last told."""
    tasks: int = 0
    """Tasks it owns."""
    abilities: tuple[str, ...] = ()
    """What it can do beyond fetching."""
    refused: tuple[str, ...] = ()
    """Jobs it takes no tasks of for now; ``reasons`` say why."""
    is_stalled: bool = False
    """Whether it cannot do any work at all: its tasks are better off elsewhere."""
    is_slow: bool = False
    """Degraded for nothing but too much work: where nobody else takes a task, slow is better."""
    reasons: tuple[str, ...] = ()
    """Why it is degraded, refuses jobs or was demoted; one sentence each."""
    pid: int
    host: str
    started_at: str
    """RFC 3339, by the node's clock."""

    def is_same_process(self, other: NodeInfo) -> bool:
        """Tell whether both come from one process, perhaps under different sessions."""
        mine = (self.id, self.host, self.pid, self.started_at)
        return mine == (other.id, other.host, other.pid, other.started_at)


def plugin_ability(name: str) -> str:
    """Return the ability to run a plugin."""
    return f"plugin:{name}"


def needs_of(spec: JobSpec) -> frozenset[str]:
    """Return the abilities a worker must have for the job."""
    stores = {WARC} if spec.store == "warc" else set()
    return frozenset(stores | {plugin_ability(name) for name in spec.plugin})


def what_lacks(spec: JobSpec, abilities: Iterable[str]) -> str | None:
    """Return what a worker lacks for a job, and the remedy; None where it lacks nothing."""
    lacking = needs_of(spec) - frozenset(abilities)
    said = [
        f"no plugin {name!r}, install its package or start with --plugin {name}=MODULE:OBJECT"
        for name in spec.plugin
        if plugin_ability(name) in lacking
    ]
    if WARC in lacking:
        said.append("no folder for the responses it stores, start with --warc-dir DIR")
    return ", ".join(said) or None


def can_do(job: str, spec: JobSpec, *, abilities: Iterable[str], refused: Iterable[str]) -> bool:
    """Tell whether a worker that takes new tasks would take tasks of the job."""
    return needs_of(spec) <= frozenset(abilities) and job not in refused


def why_nobody(job: str, spec: JobSpec, live: Sequence[NodeInfo]) -> str | None:
    """Return why no worker there is takes new tasks of a job; None where one would.

    Args:
        job: its id.
        spec: what it asks for.
        live: the nodes that are there, of any role.
    """
    workers = [info for info in live if info.role == "worker"]
    if not workers:
        return "there is no worker; start one with crawlctl start-worker"
    because: dict[str, list[str]] = {}
    for info in workers:
        reason = _why_not(job, spec, info)
        if reason is None:
            return None
        because.setdefault(reason, []).append(info.id)
    told = "; ".join(f"{_names(names)}: {reason}" for reason, names in sorted(because.items()))
    return f"no worker takes tasks of it ({told})"


def _why_not(job: str, spec: JobSpec, info: NodeInfo) -> str | None:
    if (lacking := what_lacks(spec, info.abilities)) is not None:
        return lacking
    if job in info.refused:
        own = [reason for reason in info.reasons if f"job {job}" in reason] or list(info.reasons)
        return ", ".join(own) or "refuses the job"
    if info.state in ELIGIBLE or info.is_slow:
        return None
    return ": ".join((info.state, *(["; ".join(info.reasons)] if info.reasons else [])))


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
