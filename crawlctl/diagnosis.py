"""What ``doctor`` looks at: services, how they are set up, and invariants across both.

Reads only. A finding that two reads could explain by something having moved in between is confirmed
by a second look before it is reported.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from common.model import counters
from common.model.errors import CrawlerError, ServiceUnavailable
from common.model.ids import JobId, Task

if TYPE_CHECKING:
    from common.coord import Coord, EndpointStatus, LockInfo, NodeView, StoredJob
    from common.frontier import FrontierClient, ServerInfo, ShardStats
    from common.runtime.settings import Settings
    from crawlctl.connect import Services

_TIMEOUT_S = 5.0
_CLOCKS_APART_S = 5.0
_CONFIRM_AFTER_S = 1.0
_USED_SHARE = 0.85
"""Of the memory limit: beyond it a crawl soon stops for lack of it."""
_OLDEST_ETCD = (3, 4)
_BAD_ETCD = ((3, 5, 0), (3, 5, 2))
"""Releases that may lose entries of their log when killed under load (fixed in 3.5.3)."""


class Status(StrEnum):
    """How a check ended."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    FAILED = "failed"
    UNREACHABLE = "unreachable"


class Finding(NamedTuple):
    """The outcome of one check."""

    check: str
    status: Status
    detail: str
    remedy: str | None = None


async def examine(settings: Settings) -> list[Finding]:
    """Run all checks that can be run; services that do not answer are findings too."""
    from crawlctl.connect import Services

    findings: list[Finding] = []
    coord = await _open_etcd(settings, findings)
    client = await _open_redis(settings, findings)
    try:
        if coord is not None and client is not None:
            async with asyncio.timeout(_TIMEOUT_S * 4):
                findings += await _across(Services(coord, client, settings.cluster))
    except ServiceUnavailable as error:
        findings.append(Finding("invariants", Status.UNREACHABLE, str(error), "run doctor again"))
    except TimeoutError:
        findings.append(Finding("invariants", Status.UNREACHABLE, "the services answer too slowly"))
    finally:
        if coord is not None:
            await coord.close()
        if client is not None:
            await client.close()
    return findings


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 3 if a service is unreachable, 1 if a check failed, else 0."""
    statuses = {finding.status for finding in findings}
    if Status.UNREACHABLE in statuses:
        return ServiceUnavailable.exit_code
    return 1 if Status.FAILED in statuses else 0


async def _open_etcd(settings: Settings, findings: list[Finding]) -> Coord | None:
    from crawlctl.connect import open_coord

    try:
        coord = await open_coord(settings)
    except CrawlerError as error:
        findings.append(
            _not_open(
                "etcd",
                error,
                absent="start etcd, or give its address by --etcd",
                wrong="correct --etcd-user (NAME:PASSWORD) or the files of --etcd-cacert, "
                "--etcd-cert and --etcd-key",
            )
        )
        return None
    findings += judge_etcd(await coord.etcd.status())
    return coord


async def _open_redis(settings: Settings, findings: list[Finding]) -> FrontierClient | None:
    from crawlctl.connect import new_client

    client = None
    try:
        client = new_client(settings)
        async with asyncio.timeout(_TIMEOUT_S):
            info = await client.info()
    except (CrawlerError, TimeoutError) as error:
        if client is not None:
            await client.close()
        reason = error if isinstance(error, CrawlerError) else None
        findings.append(
            _not_open(
                "redis",
                reason,
                absent="start it, or give its address by --redis",
                wrong="correct --redis: redis://[USER:PASSWORD@]HOST[:PORT][/DB], the password "
                "also as @FILE or env:NAME; rediss:// for TLS",
            )
        )
        return None
    findings += judge_redis(info, now_s=time.time())
    return client


def _not_open(name: str, error: CrawlerError | None, *, absent: str, wrong: str) -> Finding:
    """Return what is said of a service: absent when it is not there, wrong when it refuses us."""
    is_up = error is not None and not isinstance(error, ServiceUnavailable)
    status = Status.FAILED if is_up else Status.UNREACHABLE
    text = str(error) if error is not None else f"no answer within {_TIMEOUT_S:g} s"
    return Finding(f"{name}.reachable", status, text, wrong if is_up else absent)


def judge_etcd(members: Sequence[EndpointStatus]) -> list[Finding]:
    """Return what the members' own words say about the cluster."""
    findings = []
    for member in members:
        if member.error is not None:
            findings.append(
                Finding(
                    "etcd.reachable",
                    Status.UNREACHABLE,
                    f"{member.endpoint}: {member.error}",
                    "start this member, or take it out of --etcd",
                )
            )
            continue
        detail = f"{member.endpoint}: etcd {member.version}, {member.db_size / 1e6:.1f} MB"
        findings.append(Finding("etcd.reachable", Status.OK, detail))
        findings += _judge_etcd_version(member.endpoint, member.version)
        findings += [
            Finding(
                "etcd.healthy",
                Status.FAILED,
                f"{member.endpoint}: {warning}",
                "see etcd's own log; out of space is mended by compaction and defragmentation",
            )
            for warning in member.warnings
        ]
    alive = [member for member in members if member.error is None]
    if alive and len({member.raft_term for member in alive}) > 1:
        findings.append(
            Finding(
                "etcd.one_cluster",
                Status.WARNING,
                "the endpoints are in different raft terms: an election is under way, or they "
                "are not one cluster",
                "run doctor again; if it stays, check --etcd",
            )
        )
    return findings


def _judge_etcd_version(endpoint: str, version: str) -> list[Finding]:
    numbers = tuple(int(part) for part in version.partition("-")[0].split(".") if part.isdecimal())
    if _BAD_ETCD[0] <= numbers <= _BAD_ETCD[1]:
        return [
            Finding(
                "etcd.version",
                Status.WARNING,
                f"{endpoint}: {version} may lose data when a member is killed under load",
                "upgrade to 3.5.3 or newer; for a private server (crawl, up) it does no harm",
            )
        ]
    if numbers < _OLDEST_ETCD:
        return [
            Finding(
                "etcd.version",
                Status.FAILED,
                f"{endpoint}: {version} is too old",
                "use 3.4 or newer",
            )
        ]
    return []


def judge_redis(info: ServerInfo, *, now_s: float) -> list[Finding]:
    """Return what the data server's settings mean for the promises."""
    kind = "Valkey" if info.is_valkey else "Redis"
    findings = [Finding("redis.reachable", Status.OK, f"{kind} {info.version}")]
    if not info.appendonly:
        findings.append(
            Finding(
                "redis.persistence",
                Status.FAILED,
                "appendonly is off: a restart loses every job",
                "set 'appendonly yes' and 'appendfsync always'",
            )
        )
    elif info.appendfsync is None:
        findings.append(
            Finding(
                "redis.persistence",
                Status.WARNING,
                "appendonly is on, but the server does not tell its appendfsync",
                "make sure it is 'always': otherwise a crash loses the last second",
            )
        )
    elif info.appendfsync != "always":
        findings.append(
            Finding(
                "redis.persistence",
                Status.WARNING,
                f"appendfsync is {info.appendfsync}: a crash of the server loses what it "
                "acknowledged last",
                "set 'appendfsync always'",
            )
        )
    else:
        findings.append(Finding("redis.persistence", Status.OK, "every write is on disk"))
    if info.eviction != "noeviction":
        findings.append(
            Finding(
                "redis.eviction",
                Status.FAILED,
                f"maxmemory-policy is {info.eviction}: the server may delete parts of a frontier",
                "set 'maxmemory-policy noeviction'",
            )
        )
    if info.limit_bytes and info.used_bytes > _USED_SHARE * info.limit_bytes:
        share = info.used_bytes / info.limit_bytes
        findings.append(
            Finding(
                "redis.memory",
                Status.WARNING,
                f"{share:.0%} of maxmemory is in use; at 100% crawling stops",
                "raise maxmemory, or export and remove old jobs",
            )
        )
    apart = info.clock_s - now_s
    far = abs(apart) > _CLOCKS_APART_S
    findings.append(
        Finding(
            "clocks",
            Status.INFO,
            f"the data server's clock is {abs(apart):.1f} s {'ahead' if apart > 0 else 'behind'}",
            "nothing depends on it, but times in records will look odd" if far else None,
        )
    )
    return findings


async def _across(services: Services) -> list[Finding]:
    findings = judge_nodes(await services.coord.members.list())
    for stored in await services.coord.jobs.list():
        if stored.job.seeds < 0:
            findings.append(
                Finding(
                    f"job {stored.job.id}",
                    Status.INFO,
                    "its seeds are still being staged",
                    "if nothing stages them any more, submit it again with the same --id",
                )
            )
        else:
            findings += await _job(services, stored)
    return findings


def judge_nodes(views: Sequence[NodeView]) -> list[Finding]:
    """Return whether there is anybody to work."""
    live = [view.info for view in views if view.left_at is None]
    findings = []
    if not any(info.role == "master" and info.state == "active" for info in live):
        findings.append(
            Finding(
                "nodes.master",
                Status.WARNING,
                "no master is active: jobs neither start nor finish",
                "start one with crawlctl start-master",
            )
        )
    workers = [info for info in live if info.role == "worker"]
    if not workers:
        findings.append(
            Finding(
                "nodes.workers",
                Status.WARNING,
                "there is no worker: nothing is fetched",
                "start one with crawlctl start-worker",
            )
        )
    if not findings:
        findings.append(Finding("nodes", Status.OK, f"a master and {len(workers)} workers"))
    return findings


async def _job(services: Services, stored: StoredJob) -> list[Finding]:
    frontier = services.frontier(stored.job)
    name = f"job {stored.job.id}"
    # Locks are read before the fences: a fence is only ever raised after its lock was taken.
    locks = await services.coord.locks.list()
    stats = await frontier.stats()
    suspects = suspicious_tasks(stored.job.id, locks, stats)
    if suspects:
        await asyncio.sleep(_CONFIRM_AFTER_S)
        locks = await services.coord.locks.list()
        stats = await frontier.stats()
        suspects &= suspicious_tasks(stored.job.id, locks, stats)
    findings = [
        Finding(
            name,
            Status.FAILED,
            f"shard {shard}: Redis has seen a newer token than the lock in etcd has",
            "etcd was probably restored from an older copy: stop all workers, then restore etcd "
            "with --bump-revision",
        )
        for shard in sorted(suspects)
    ]
    findings += judge_counters(name, stats)
    if not findings:
        total = counters.add([one.counters for one in stats])["discovered"]
        detail = f"{stored.job.state.value}; {total} URLs, all accounted for"
        findings.append(Finding(name, Status.OK, detail))
    return findings


def suspicious_tasks(
    job_id: str, locks: Sequence[LockInfo], stats: Sequence[ShardStats]
) -> set[int]:
    """Return the shards whose fence is above the token of the lock that is held."""
    from common.coord import Locks

    tokens = {lock.name: lock.token for lock in locks}
    return {
        one.shard
        for one in stats
        if one.token > tokens.get(Locks.task_name(Task(JobId(job_id), one.shard)), one.token)
    }


def judge_counters(name: str, stats: Sequence[ShardStats]) -> list[Finding]:
    """Return the shards whose counters do not add up; each was read atomically."""
    return [
        Finding(
            name,
            Status.FAILED,
            f"shard {one.shard}: {one.counters['discovered']} URLs discovered but "
            f"{counters.total(one.counters)} accounted for",
            "this is a fault of crawlctl or of somebody who wrote to its keys; keep the data and "
            "report it",
        )
        for one in stats
        if one.exists and not counters.is_balanced(one.counters)
    ]
