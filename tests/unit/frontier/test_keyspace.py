"""docs/keyspace.md names every key and every field there is."""

from __future__ import annotations

import re
from pathlib import Path

from common.coord.keys import Keys
from common.frontier.keys import TaskKeys
from common.frontier.seen import SeenLayout, fingerprint
from common.model.ids import HostKey, JobId, NodeId, Task

_ROOT = Path(__file__).parents[3]
_TEXT = (_ROOT / "docs" / "keyspace.md").read_text("utf-8")
_ETCD, _REDIS = _TEXT.split("## Redis")


def _named(text: str) -> set[str]:
    """Return the first cells of all table rows, with every <placeholder> made equal."""
    cells = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    names = [name for cell in cells for name in re.findall(r"`([^`]*)`", cell)]
    return {re.sub(r"<[^>]*>", "*", name) for name in names}


def test_every_key_in_etcd_is_documented() -> None:
    keys = Keys("c")
    made = [
        keys.node(NodeId("*")), keys.departed(NodeId("*")), keys.drain(NodeId("*")), keys.election,
        keys.lock("*"), keys.lock("tasks/*/*"), keys.job(JobId("*")), keys.deleted_job(JobId("*")),
        keys.assignment_version, keys.assignment(NodeId("*")), keys.buried,
        re.sub("1$", "*", keys.door(1)),
    ]  # fmt: skip
    assert {key.removeprefix("/crawlctl/c/") for key in made} == _named(_ETCD)


def test_every_key_in_redis_is_documented() -> None:
    keys = TaskKeys("c", Task(JobId("j"), 0))
    names = {getattr(keys, name) for name in TaskKeys.__slots__ if not name.startswith("_")}
    names |= {keys.queue(HostKey("*")), keys.ledger(HostKey("*"))}
    bloom = SeenLayout(keys, mode="bloom", rate=1e-6)
    seen = bloom.buckets(fingerprint("http://a/", "bloom"), 1)
    layout = SeenLayout(keys, mode="exact", rate=1e-6)
    seen += layout.buckets(fingerprint("http://a/", "exact"), 1)
    names |= {re.sub(r"\d+(?=:|$)", "*", key.partition("}")[2]) for key in seen}
    made = {name.removeprefix("crawlctl:c:{j:0}:").removeprefix(":") for name in names}
    keys_part, _ = _REDIS.split("### Fields of `meta`")
    assert made == _named(keys_part)


def test_every_field_of_meta_is_documented() -> None:
    folder = _ROOT / "common" / "frontier" / "lua"
    create = (folder / "create.lua").read_text("utf-8").rpartition("HSET")[2]
    made = set(re.findall(r"'([a-z_]+)'", create))
    # Made by the scripts that need them first.
    made |= {"adoption", "clock", "paid", "paid_ended", "paid_in_flight"}
    made |= {"refilled", "skew", "trimmed"}
    assert made == _named(_REDIS.split("### Fields of `meta`")[1])
