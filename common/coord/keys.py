"""Every key in etcd, in one place: all below ``/crawlctl/<cluster>/``.

========================  ===========================================  =====================
key                       value                                        lease
========================  ===========================================  =====================
nodes/<id>                NodeInfo                                     the node's
departed/<id>             NodeInfo and when it left                    one hour
drains/<id>               when somebody asked the node to drain        the node's
election/master           node, nonce; create revision = term          the master's
locks/<name>              owner, nonce; create revision = token        the owner's
locks/tasks/<job>/<n>     the same, for the task <job>:<n>             the owner's
doors/<lease>             empty; see common.coord.door                 the session's
jobs/<job>                Job; mod revision guards changes             none
deleted/<job>             when; the id is not used again               none
assignments/version       the version of the latest snapshot           none
assignments/nodes/<id>    Assignment                                   none
buried                    empty; see common.coord.burial               none
========================  ===========================================  =====================
"""

from __future__ import annotations

from common.model.ids import JobId, NodeId, checked_name


class Keys:
    """The keys of one cluster."""

    def __init__(self, cluster: str) -> None:
        checked_name(cluster, field="--cluster")
        self.root = f"/crawlctl/{cluster}/"
        self.nodes = f"{self.root}nodes/"
        self.departed_nodes = f"{self.root}departed/"
        self.election = f"{self.root}election/master"
        self.locks = f"{self.root}locks/"
        self.jobs = f"{self.root}jobs/"
        self.assignments = f"{self.root}assignments/"
        self.assignment_version = f"{self.assignments}version"
        self.assigned_nodes = f"{self.assignments}nodes/"
        self.buried = f"{self.root}buried"

    def node(self, node: NodeId | str) -> str:
        """Key of a live node."""
        return self.nodes + node

    def departed(self, node: NodeId | str) -> str:
        """Key of a node that left."""
        return self.departed_nodes + node

    def drain(self, node: NodeId | str) -> str:
        """Key that asks a node to drain."""
        return f"{self.root}drains/{node}"

    def lock(self, name: str) -> str:
        """Key of a lock."""
        return self.locks + name

    def job(self, job: JobId | str) -> str:
        """Key of a job."""
        return self.jobs + job

    def deleted_job(self, job: JobId | str) -> str:
        """Key that keeps a deleted job's id from being used again."""
        return f"{self.root}deleted/{job}"

    def assignment(self, node: NodeId | str) -> str:
        """Key of what a worker should own."""
        return self.assigned_nodes + node

    def door(self, lease: int) -> str:
        """Key of a session's door."""
        return f"{self.root}doors/{lease:x}"
