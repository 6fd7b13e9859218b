"""The control plane on etcd: sessions, locks, election, members, jobs and assignments.

The only package that talks to etcd. ``connect`` gives a process all of it as one object.

The order of things: a *session* is a lease with a heartbeat; *locks*, the *election* and the
*members'* keys hang on a session; *jobs* and *assignments* do not, but a master's writes to them
are guarded by its term. A *mirror* follows a prefix. Tokens and terms are create revisions.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.coord.assignments import Assignment, Assignments
from common.coord.burial import buried_below, bury, revoke_all_leases
from common.coord.client import EndpointStatus, Etcd
from common.coord.drain import Drains
from common.coord.election import Election, Leader, check_term
from common.coord.jobs import Exists, JobStore, Reused, Stale, StoredJob, stored_job
from common.coord.keys import Keys
from common.coord.lock import Acquired, Held, LockInfo, Locks
from common.coord.member import EtcdOptions
from common.coord.members import Members, NodeView
from common.coord.mirror import Mirror
from common.coord.session import Session
from common.coord.wire import KeyValue, Snapshot
from common.model.node import NodeInfo
from common.runtime.settings import OPEN_TIMEOUT_S

__all__ = [
    "Acquired",
    "Assignment",
    "Assignments",
    "Coord",
    "Drains",
    "Election",
    "EndpointStatus",
    "Etcd",
    "EtcdOptions",
    "Exists",
    "Held",
    "JobStore",
    "KeyValue",
    "Keys",
    "Leader",
    "LockInfo",
    "Locks",
    "Members",
    "Mirror",
    "NodeInfo",
    "NodeView",
    "Reused",
    "Session",
    "Snapshot",
    "Stale",
    "StoredJob",
    "buried_below",
    "bury",
    "check_term",
    "connect",
    "revoke_all_leases",
    "stored_job",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coord:
    """The control plane of one cluster; close it after every session and mirror."""

    etcd: Etcd
    keys: Keys
    locks: Locks
    election: Election
    jobs: JobStore
    members: Members
    drains: Drains
    assignments: Assignments

    async def close(self) -> None:
        """Close the client."""
        await self.etcd.close()


async def connect(
    options: EtcdOptions, *, cluster: str, timeout_s: float = OPEN_TIMEOUT_S
) -> Coord:
    """Open a client and everything that works on it.

    Raises:
        CoordUnavailable: etcd cannot be reached within ``timeout_s``; names the endpoints.
        UsageError: the cluster's name or a setting of the connection is wrong.
    """
    keys = Keys(cluster)
    etcd = Etcd(options)
    up = "crawlctl up --data DIR" + ("" if cluster == "default" else f" --cluster {cluster}")
    await etcd.open(timeout_s=timeout_s, up=up)
    return Coord(
        etcd=etcd,
        keys=keys,
        locks=Locks(etcd, keys),
        election=Election(etcd, keys),
        jobs=JobStore(etcd, keys),
        members=Members(etcd, keys),
        drains=Drains(etcd, keys),
        assignments=Assignments(etcd, keys),
    )
