"""Which node of a Redis Cluster serves which slot, as one of its nodes tells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from redis.crc import key_slot

SLOTS: Final = 16_384
TAGS: Final = 3
"""Own keys a node, each in another slot."""
_KEY_AT: Final = {"XREADGROUP": -2, "MEMORY": 2, "OBJECT": 2}
"""Where the key stands in commands in which it is not the first argument."""


def slot_of(key: str) -> int:
    """Return the slot of a key: that of its hash tag."""
    return key_slot(key.encode())


def key_of(command: tuple[str | bytes | int | float, ...]) -> str:
    """Return the key that a plain command is about."""
    key = command[_KEY_AT.get(str(command[0]), 1)]
    return key.decode() if isinstance(key, bytes) else str(key)


class Member(NamedTuple):
    """A node of the cluster as another one sees it."""

    id: str
    host: str
    """Empty: the node that was asked, which does not know its own address."""
    port: int
    is_master: bool
    has_failed: bool
    epoch: int
    """Of its claim to its slots: the newest claim holds."""
    master: str
    """Id of the node it replicates; empty for a master."""
    slots: tuple[tuple[int, int], ...]
    """First and last of each range."""
    open_slots: tuple[str, ...]
    """Being moved, as the node asked says of itself: ``[7->-ID]`` to ID, ``[7-<-ID]`` from it."""


def parse_nodes(raw: bytes, *, by_name: bool) -> list[Member]:
    """Return the nodes of an answer to CLUSTER NODES that can be talked to.

    Args:
        raw: the answer.
        by_name: call nodes by their host names where they have some (TLS), not by address.
    """
    found = []
    for line in raw.decode().splitlines():
        name, address, flags, master, _, _, epoch, _, *slots = line.split()
        marks = flags.split(",")
        if "noaddr" in marks or "handshake" in marks:
            continue
        where, _, host_name = address.partition(",")
        host, _, port = where.partition("@")[0].rpartition(":")
        ranges = [one.partition("-") for one in slots if not one.startswith("[")]
        found.append(
            Member(
                id=name,
                host=(host_name.partition(",")[0] if by_name else "") or host,
                port=int(port),
                is_master="master" in marks,
                has_failed="fail" in marks,
                epoch=int(epoch),
                master="" if master == "-" else master,
                slots=tuple((int(first), int(last or first)) for first, _, last in ranges),
                open_slots=tuple(one for one in slots if one.startswith("[")),
            )
        )
    return found


class Topology:
    """A look at the cluster: its masters, and who serves each slot."""

    def __init__(self, members: list[Member]) -> None:
        self.members = members
        self.epoch = max((one.epoch for one in members), default=0)
        """Grows whenever slots change hands."""
        self.masters = [one for one in members if one.is_master and not one.has_failed]
        self.owners: list[str | None] = [None] * SLOTS
        """Slot -> id of the master that serves it, whether it can be reached or not."""
        for one in members:
            if one.is_master:
                for first, last in one.slots:
                    self.owners[first : last + 1] = [one.id] * (last + 1 - first)

    @property
    def covered(self) -> int:
        """Slots that a node serves."""
        alive = {one.id for one in self.masters}
        return sum(owner in alive for owner in self.owners)

    def replicas(self, master: str) -> int:
        """Return how many nodes may take over from a master."""
        return sum(one.master == master and not one.has_failed for one in self.members)

    def tags(self) -> Mapping[str, tuple[str, ...]]:
        """Return hash tags by the master that serves their slots, a few for each."""
        wanted = {owner for owner in self.owners if owner is not None}
        found: dict[str, list[str]] = {owner: [] for owner in wanted}
        number = 0
        while any(len(tags) < TAGS for tags in found.values()) and number < SLOTS:
            owner = self.owners[slot_of(f"{number}")]
            if owner is not None and len(found[owner]) < TAGS:
                found[owner].append(str(number))
            number += 1
        return {owner: tuple(tags) for owner, tags in found.items()}
