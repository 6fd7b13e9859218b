"""What a Redis or Valkey server says of itself, and what that means."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

_REMEDIES: Final = {
    "maxmemory": "raise maxmemory, or export and delete old jobs",
    "read only replica": "give the address of the master by --redis",
    "MISCONF": "its disk is full or broken: see its log",
    "replica-serve-stale-data": "it is a replica: give the address of the master by --redis",
}


class Durability(StrEnum):
    """When a write that was acknowledged survives a crash of the server."""

    AT_ONCE = "at once"
    """AOF always."""
    DELAYED = "delayed"
    """AOF everysec, or unknown."""
    NONE = "none"
    """No AOF, or one that is never synced on purpose."""


class ServerInfo(NamedTuple):
    """What the server says of itself."""

    version: str
    is_valkey: bool
    run_id: str
    appendonly: bool
    appendfsync: str | None
    replicas: int
    eviction: str
    used_bytes: int
    limit_bytes: int
    """0 = no limit."""
    clock_s: float
    """The server's TIME, seconds since the Unix epoch."""
    uptime_s: int = 0
    in_cluster: bool = False
    """It is a node of a Redis Cluster."""
    was_replica: bool = False
    """It took over from another server during this run."""

    @property
    def durability(self) -> Durability:
        """When what it acknowledges is on its disk."""
        if not self.appendonly or self.appendfsync == "no":
            return Durability.NONE
        return Durability.AT_ONCE if self.appendfsync == "always" else Durability.DELAYED

    @property
    def is_durable(self) -> bool:
        """A restart loses nothing acknowledged, and no replica can take over without it."""
        return self.durability is Durability.AT_ONCE and self.replicas == 0


def with_remedy(text: str) -> str:
    """Return what a refusing server said, with what would mend it where it does not say so."""
    for code, remedy in _REMEDIES.items():
        if code in text:
            return f"{text.rstrip('.')}; {remedy}"
    return text


def parse_info(raw: bytes) -> dict[str, str]:
    """Return the fields of an answer to INFO."""
    lines = (line.partition(":") for line in raw.decode().splitlines())
    return {name: value for name, colon, value in lines if colon}


def server_info(raw: bytes, *, clock: Sequence[bytes], appendfsync: str | None) -> ServerInfo:
    """Return what the answers to INFO, TIME and CONFIG GET appendfsync say.

    Args:
        raw: of INFO.
        clock: of TIME.
        appendfsync: None where the server does not tell.
    """
    facts = parse_info(raw)
    return ServerInfo(
        version=facts.get("valkey_version", facts["redis_version"]),
        is_valkey="valkey_version" in facts,
        run_id=facts["run_id"],
        appendonly=facts.get("aof_enabled") == "1",
        appendfsync=appendfsync,
        replicas=int(facts.get("connected_slaves", 0)),
        eviction=facts.get("maxmemory_policy", "noeviction"),
        used_bytes=int(facts.get("used_memory", 0)),
        limit_bytes=int(facts.get("maxmemory", 0)),
        clock_s=int(clock[0]) + int(clock[1]) / 1e6,
        uptime_s=int(facts.get("uptime_in_seconds", 0)),
        in_cluster=facts.get("cluster_enabled") == "1",
        was_replica=facts.get("master_replid2", "").strip("0") != "",
    )
