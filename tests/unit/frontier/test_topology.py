"""What the nodes of a Redis Cluster say of each other."""

from __future__ import annotations

import pytest

from common.frontier.keys import fsync_key, no_meta_key
from common.frontier.topology import SLOTS, Topology, key_of, parse_nodes, slot_of

NODES = b"""\
a1 10.0.0.1:7000@17000,one.example,shard-id=x myself,master - 0 0 4 connected 0-8191 [5->-b2]
b2 10.0.0.2:7000@17000,two.example master - 0 1 9 connected 8192-16382 [5-<-a1]
c3 fe80::3:7000@17000, slave a1 0 1 4 connected
d4 10.0.0.4:7000@17000 slave,fail b2 0 1 9 disconnected
e5 10.0.0.5:7000@17000 master,fail - 0 1 3 disconnected 16383
f6 10.0.0.6:7000@17000 master - 0 1 0 connected
g7 :0@0 master,noaddr - 0 1 0 disconnected
h8 10.0.0.8:7000@17000 handshake - 0 0 0 connected
"""


def test_masters_replicas_slots_and_what_moves_are_told_apart() -> None:
    members = parse_nodes(NODES, by_name=False)
    assert [one.id for one in members] == ["a1", "b2", "c3", "d4", "e5", "f6"]
    assert [one.host for one in members[:3]] == ["10.0.0.1", "10.0.0.2", "fe80::3"]
    assert (members[0].port, members[0].slots, members[0].open_slots) == (
        7000, ((0, 8191),), ("[5->-b2]",),
    )  # fmt: skip
    seen = Topology(members)
    assert [one.id for one in seen.masters] == ["a1", "b2", "f6"]
    assert [seen.owners[slot] for slot in (0, 8191, 8192, 16_383)] == ["a1", "a1", "b2", "e5"]
    assert (seen.covered, seen.epoch) == (SLOTS - 1, 9)
    # One that has failed takes over from nobody.
    assert [seen.replicas(name) for name in ("a1", "b2", "f6")] == [1, 0, 0]


def test_with_tls_nodes_are_called_by_the_names_in_their_certificates() -> None:
    assert [one.host for one in parse_nodes(NODES, by_name=True)][:4] == [
        "one.example", "two.example", "fe80::3", "10.0.0.4",
    ]  # fmt: skip


def test_every_master_with_slots_has_own_keys_in_slots_of_its_own() -> None:
    seen = Topology(parse_nodes(NODES, by_name=False))
    tags = seen.tags()
    assert {name: len(found) for name, found in tags.items()} == {"a1": 3, "b2": 3, "e5": 0}
    for name, found in tags.items():
        for tag in found:
            assert seen.owners[slot_of(no_meta_key(tag))] == name
            assert seen.owners[slot_of(fsync_key(tag))] == name


@pytest.mark.parametrize(
    "command",
    [
        ("HGET", "{k}", "version"),
        ("XREADGROUP", "GROUP", "STREAMS", "r", "COUNT", 1, "STREAMS", "{k}", ">"),
        ("MEMORY", "USAGE", "{k}", "SAMPLES", 5),
        ("UNLINK", b"{k}"),
    ],
)
def test_the_key_of_a_command_is_found(command: tuple[str | bytes | int, ...]) -> None:
    assert key_of(command) == "{k}"
