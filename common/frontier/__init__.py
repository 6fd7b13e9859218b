"""The data plane: frontier, seen-set, results and counters of every job, in Redis or Valkey.

The only importer of ``redis``. All changes are Lua scripts (``lua/``, one operation a file), each
of which checks who is asking before it touches anything: the owner's fencing token, the master's
term and job revision, the server run. A shard as its owner sees it is
:class:`~common.frontier.owner.TaskFrontier`, :class:`~common.frontier.offers.Offers` is the way in
for everyone, :class:`~common.frontier.job.JobFrontier` all shards as the master sees them.
Not promised: a server that loses acknowledged writes (AOF off or everysec) loses offers too.
"""

from common.frontier.seen_audit import SeenState, seen_discrepancies, seen_state
from common.frontier.client import FrontierClient, RedisOptions, ServerInfo
from common.frontier.job import UNLIMITED, JobFrontier, MasterFence, ShardStats, shard_state
from common.frontier.replies import Refusal, ShardState

__all__ = [
    "UNLIMITED", "FrontierClient", "JobFrontier", "MasterFence", "RedisOptions", "Refusal",
    "SeenState", "ServerInfo", "ShardState", "ShardStats", "seen_discrepancies", "seen_state",
    "shard_state",
]  # fmt: skip
