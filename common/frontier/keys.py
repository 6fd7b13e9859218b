"""Every Redis key of crawlctl, made here and nowhere else (see docs/keyspace.md).

All keys of a task share the hash tag ``{job:shard}``, so that one script may touch them on a
Redis Cluster. The names are short because a host's queue is a key of its own.
"""

from __future__ import annotations

from common.model.ids import HostKey, JobId, PaceKey, Task


def keys_of_job(cluster: str, job: JobId) -> str:
    """Return the pattern of all keys of a job; names hold no character that is special in it."""
    return f"crawlctl:{cluster}:{{{job}:*"


def pace_key(cluster: str, key: PaceKey) -> str:
    """Return the key of a host's or group's pace, over all jobs of a cluster (hash, expires).

    The tag stands first, so that no job's pattern matches it, whatever the job is called.
    """
    return f"crawlctl:{{pace:{cluster}:{key}}}"


def no_meta_key(tag: str) -> str:
    """Return the meta key of a shard that never is: a script on it does nothing, if it may run.

    Args:
        tag: decides which node of a cluster it lies on.
    """
    return f"crawlctl:{{{tag}}}:meta"


def fsync_key(tag: str) -> str:
    """Return what is written before a server is asked to sync: there must be something to wait for.

    Args:
        tag: decides which node of a cluster it lies on.
    """
    return f"crawlctl:{{{tag}}}:fsync"


class TaskKeys:
    """The keys of one shard of one job."""

    __slots__ = (
        "_prefix", "blocked", "busy", "dead", "delayed", "delays", "due", "errors", "hll",
        "in_flight", "meta", "pace", "pages", "ready", "results", "rules", "scope", "sitemaps",
        "slot", "slots", "staged", "visited",
    )  # fmt: skip

    def __init__(self, cluster: str, task: Task) -> None:
        prefix = f"crawlctl:{cluster}:{{{task.job}:{task.shard}}}:"
        self._prefix = prefix
        self.meta = prefix + "meta"
        """Hash: version, run, state, fences, budget, clock, counters; see docs/keyspace.md."""
        self.ready = prefix + "ready"
        """Sorted set: host -> ms at which its next claim is allowed."""
        self.pace = prefix + "pace"
        """Sorted set: host -> ms before which nothing may be sent to it."""
        self.slots = prefix + "slots"
        """Sorted set: claim -> ms at which its request is surely over."""
        self.slot = prefix + "slot"
        """Hash: claim -> ``token delay host``."""
        self.busy = prefix + "busy"
        """Hash: host -> slots in use."""
        self.in_flight = prefix + "flight"
        r"""Hash: claim -> ``token\nhost\nitem``."""
        self.delayed = prefix + "delayed"
        r"""Sorted set: ``host\nitem`` -> ms at which it is due."""
        self.results = prefix + "results"
        """Stream: field ``r`` = result record (JSON)."""
        self.dead = prefix + "dead"
        r"""Hash: ``host\nclaim`` -> ``result id\nletter`` of a dead letter (letters.py)."""
        self.pages = prefix + "pages"
        """Hash: host -> pages fetched (kept only where pages a host are limited)."""
        self.due = prefix + "due"
        """Sorted set: mark of a page -> ms at which its next visit is due (visits.py)."""
        self.visited = prefix + "visited"
        r"""Hash: mark -> ``result id\noutcome\nclaim\nhost\nitem``; on its way without the item."""
        self.errors = prefix + "errors"
        """Hash: host -> URLs of it that failed or died."""
        self.blocked = prefix + "blocked"
        """Set: hosts to which nothing is sent for now."""
        self.delays = prefix + "delays"
        """Hash: host -> delay in ms that was set for it, in place of the job's."""
        self.hll = prefix + "hll"
        """HyperLogLog of the fingerprints offered."""
        self.sitemaps = prefix + "sitemaps"
        """Hash: URL of a sitemap -> what became of it (JSON)."""
        self.rules = prefix + "rules"
        """Hash: rule -> links it refused."""
        self.staged = prefix + "staged"
        """Hash (shard 0): chunk number -> seed URLs (msgpack)."""
        self.scope = prefix + "scope"
        """Set (shard 0): scope keys of the job."""

    def queue(self, host: HostKey) -> str:
        """Return the key of a host's queue (list of items)."""
        return f"{self._prefix}q:{host}"

    def ledger(self, host: HostKey) -> str:
        """Return the key of a host's pages against a budget that shards share (hash).

        It lies in the shard that the host as a whole belongs to.
        """
        return f"{self._prefix}l:{host}"

    def filter(self, layer: int, bucket: int) -> str:
        """Return the key of a bucket of a Bloom filter (string)."""
        return f"{self._prefix}b:{layer}:{bucket}"

    def fingerprints(self, layer: int, bucket: int) -> str:
        """Return the key of a bucket of fingerprints (set of integers)."""
        return f"{self._prefix}f:{layer}:{bucket}"


class HostQueues:
    """The distinct host queues of one script call, numbered from 1 as they are met."""

    def __init__(self, keys: TaskKeys) -> None:
        self._keys = keys
        self._numbers: dict[HostKey, int] = {}

    def index(self, host: HostKey) -> int:
        """Return the number of a host's queue among the call's."""
        return self._numbers.setdefault(host, len(self._numbers) + 1)

    @property
    def names(self) -> list[str]:
        """The keys, in order of their numbers."""
        return [self._keys.queue(host) for host in self._numbers]
