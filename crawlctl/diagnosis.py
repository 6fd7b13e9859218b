"""What ``doctor`` looks at: services, how they are set up, and invariants across both.

Reads only. What holds across both services is in :mod:`crawlctl.invariants`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from common.model.errors import CrawlerError, ServiceUnavailable
from crawlctl.cluster_diagnosis import judge_topology
from crawlctl.findings import Finding, Status
from crawlctl.invariants import examined

if TYPE_CHECKING:
    from common.coord import Coord, EndpointStatus
    from common.frontier import FrontierClient, ServerInfo
    from common.runtime.settings import Settings

_TIMEOUT_S = 5.0
_CLOCKS_APART_S = 5.0
_USED_SHARE = 0.85
"""Of the memory limit: beyond it a crawl soon stops for lack of it."""
_OLDEST_ETCD = (3, 4)
_BAD_ETCD = ((3, 5, 0), (3, 5, 2))
"""Releases that may lose entries of their log when killed under load (fixed in 3.5.3)."""


async def examine(settings: Settings) -> list[Finding]:
    """Run all checks that can be run; services that do not answer are findings too."""
    from crawlctl.connect import Services

    findings: list[Finding] = []
    coord = await _open_etcd(settings, findings)
    client = await _open_redis(settings, findings)
    try:
        if coord is not None and client is not None:
            async with asyncio.timeout(_TIMEOUT_S * 4):
                findings += await examined(Services(coord, client, settings.cluster))
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
    findings += judge_etcd(await coord.etcd.status(), is_private=_is_private(settings))
    return coord


async def _open_redis(settings: Settings, findings: list[Finding]) -> FrontierClient | None:
    from crawlctl.connect import new_client

    client = None
    try:
        client = new_client(settings)
        async with asyncio.timeout(_TIMEOUT_S):
            infos = await client.infos()
            topology = await client.topology()
            moving = await client.moving()
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
                "also as @FILE or env:NAME; rediss:// for TLS; several URLs for a Redis Cluster",
            )
        )
        return None
    for endpoint, info in infos.items():
        where = "" if topology is None else f"{endpoint}: "
        if isinstance(info, ServiceUnavailable):
            remedy = "start it; until then the tasks whose keys lie there wait"
            findings.append(Finding("redis.reachable", Status.UNREACHABLE, str(info), remedy))
        else:
            findings += judge_redis(info, now_s=time.time(), where=where)
    if topology is not None:
        findings += judge_topology(topology, moving)
    return client


def _not_open(name: str, error: CrawlerError | None, *, absent: str, wrong: str) -> Finding:
    """Return what is said of a service: absent when it is not there, wrong when it refuses us."""
    is_up = error is not None and not isinstance(error, ServiceUnavailable)
    status = Status.FAILED if is_up else Status.UNREACHABLE
    text = str(error) if error is not None else f"no answer within {_TIMEOUT_S:g} s"
    return Finding(f"{name}.reachable", status, text, wrong if is_up else absent)


def _is_private(settings: Settings) -> bool:
    """Tell whether etcd is the one of an ``up`` on this machine."""
    from common.runtime import upstate
    from common.runtime.endpoints import etcd_place

    running = upstate.load(settings.cluster, os.environ)
    places = set(map(etcd_place, settings.etcd_endpoints))
    return running is not None and places == {etcd_place(running.etcd)}


def judge_etcd(members: Sequence[EndpointStatus], *, is_private: bool = False) -> list[Finding]:
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
        findings += _judge_etcd_version(member.endpoint, member.version, is_private=is_private)
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


def _judge_etcd_version(endpoint: str, version: str, *, is_private: bool) -> list[Finding]:
    numbers = tuple(int(part) for part in version.partition("-")[0].split(".") if part.isdecimal())
    if _BAD_ETCD[0] <= numbers <= _BAD_ETCD[1]:
        detail = f"{endpoint}: {version} may lose data when a member is killed under load"
        if is_private:
            told = f"{detail}; a private server of one member, as here, is not affected"
            return [Finding("etcd.version", Status.INFO, told)]
        return [Finding("etcd.version", Status.WARNING, detail, "upgrade to 3.5.3 or newer")]
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


def judge_redis(info: ServerInfo, *, now_s: float, where: str = "") -> list[Finding]:
    """Return what a data server's settings mean for the promises.

    Args:
        info: what it says of itself.
        now_s: our clock.
        where: names the node of a cluster, before what is said of it.
    """
    kind = "Valkey" if info.is_valkey else "Redis"
    findings = [Finding("redis.reachable", Status.OK, f"{kind} {info.version}")]
    findings.append(_judge_persistence(info))
    findings += _judge_memory(info)
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
    return [one._replace(detail=where + one.detail) for one in findings]


def _judge_persistence(info: ServerInfo) -> Finding:
    from common.frontier import Durability

    if not info.appendonly:
        status = Status.FAILED
        detail = "appendonly is off: a restart loses every job"
        remedy = "set 'appendonly yes' and 'appendfsync always'"
    elif info.appendfsync is None:
        status = Status.WARNING
        detail = "appendonly is on, but the server does not tell its appendfsync"
        remedy = "make sure it is 'always': otherwise a crash loses the last second"
    elif info.durability is Durability.DELAYED:
        status = Status.OK
        detail = (
            f"appendfsync is {info.appendfsync}: a crash of the server takes back the last "
            "second or two; those pages are fetched again, and none is lost"
        )
        remedy = "set 'appendfsync always' to fetch none twice"
    elif info.durability is Durability.NONE:
        status = Status.WARNING
        detail = (
            f"appendfsync is {info.appendfsync}: a crash of the machine loses what the system "
            "had not written yet, of any age"
        )
        remedy = "set 'appendfsync everysec' or 'always'"
    else:
        return Finding("redis.persistence", Status.OK, "every write is on disk")
    return Finding("redis.persistence", status, detail, remedy)


def _judge_memory(info: ServerInfo) -> list[Finding]:
    findings = []
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
    return findings
