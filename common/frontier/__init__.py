"""The data plane: frontier, seen-set, results and counters of every job, in Redis or Valkey.

The only importer of ``redis``. All changes are Lua scripts (``lua/``, one operation a file), each
of which checks who is asking before it touches anything: the owner's fencing token, the master's
term and job revision, the server run. A shard as its owner sees it is
:class:`~common.frontier.owner.TaskFrontier`, :class:`~common.frontier.offers.Offers` is the way in
for everyone, :class:`~common.frontier.job.JobFrontier` all shards as the master sees them.
With AOF everysec a crash takes back the last second as a whole, and what hangs on it elsewhere
waits for :meth:`~common.frontier.client.FrontierClient.wait_durable`. Not promised: a server
without AOF loses offers too.
"""

from common.frontier.addresses import RedisOptions
from common.frontier.client import FrontierClient
from common.frontier.job import UNLIMITED, JobFrontier, MasterFence, shard_state
from common.frontier.replies import Refusal, ShardState
from common.frontier.seen_audit import SeenState, seen_discrepancies, seen_state
from common.frontier.server import Durability, ServerInfo
from common.frontier.shard_stats import ShardStats

__all__ = [
    "UNLIMITED", "Durability", "FrontierClient", "JobFrontier", "MasterFence", "RedisOptions",
    "Refusal", "SeenState", "ServerInfo", "ShardState", "ShardStats", "seen_discrepancies",
    "seen_state", "shard_state",
]  # fmt: skip
