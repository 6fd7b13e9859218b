"""What ``doctor`` says of a Redis Cluster as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from crawlctl.findings import Finding, Status

if TYPE_CHECKING:
    from common.frontier.topology import Topology


def judge_topology(topology: Topology, moving: Sequence[str]) -> list[Finding]:
    """Return what the state of a Redis Cluster means for the tasks in it.

    Args:
        topology: as it is now.
        moving: slots on their way from one node to another, as the nodes say.
    """
    from common.frontier.topology import SLOTS

    masters = len(topology.masters)
    findings = []
    if topology.covered < SLOTS:
        findings.append(
            Finding(
                "redis.cluster",
                Status.FAILED,
                f"{SLOTS - topology.covered} of {SLOTS} slots are served by no node; the tasks "
                "whose keys lie there wait",
                "start the nodes that are gone, or run redis-cli --cluster fix",
            )
        )
    else:
        findings.append(
            Finding("redis.cluster", Status.OK, f"{masters} masters serve all {SLOTS} slots")
        )
    if moving:
        findings.append(
            Finding(
                "redis.slots",
                Status.WARNING,
                f"slots on their way to another node: {', '.join(moving)}; their tasks wait",
                "if nobody is moving them, run redis-cli --cluster fix",
            )
        )
    alone = [one for one in topology.masters if one.slots and not topology.replicas(one.id)]
    if alone:
        names = ", ".join(f"{one.host}:{one.port}" for one in alone)
        findings.append(
            Finding(
                "redis.replicas",
                Status.INFO,
                f"no replica takes over from {names}: while such a node is away, its tasks wait",
            )
        )
    else:
        findings.append(Finding("redis.replicas", Status.OK, "every master has a replica"))
    return findings
