"""Keys, protobuf forms and sizes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.coord import session
from common.coord.assignments import _chunks
from common.coord.codec import decoded, encoded
from common.coord.jitter import backoff_s
from common.coord.jobs import DeletedJob
from common.coord.keys import Keys
from common.coord.lock import Locks
from common.coord.wire import (
    Delete,
    Get,
    KeyValue,
    Put,
    absent,
    created_at,
    leased_by,
    modified_at,
    range_end,
    txn_request,
)
from common.model.errors import CrawlerError, UsageError
from common.model.ids import JobId, NodeId, Task, in_order

_ROOT = Path(__file__).parents[3]


def test_every_key_lies_below_the_cluster() -> None:
    keys = Keys("prod")
    assert keys.root == "/crawlctl/prod/"
    assert keys.election == "/crawlctl/prod/election/master"
    assert keys.node(NodeId("w1")) == "/crawlctl/prod/nodes/w1"
    assert keys.job(JobId("j")) == "/crawlctl/prod/jobs/j"
    task = Task(JobId("j"), 7)
    assert keys.lock(Locks.task_name(task)) == "/crawlctl/prod/locks/tasks/j/7"
    # What is listed by a prefix must hold nothing else.
    assert not keys.deleted_job("j").startswith(keys.jobs)
    assert not keys.departed("w").startswith(keys.nodes)
    assert not keys.assignment_version.startswith(keys.assigned_nodes)


def test_a_clusters_name_cannot_reach_into_another() -> None:
    for name in ("", "a/b", "..", "a b"):
        with pytest.raises(UsageError, match="--cluster"):
            Keys(name)


def test_a_prefix_ends_before_the_next_one() -> None:
    assert range_end("/crawlctl/a/") == b"/crawlctl/a0"


def test_a_transaction_says_what_was_meant() -> None:
    request = txn_request(
        [absent("a"), created_at("b", 5), modified_at("c", 6), leased_by("d", 7)],
        [Put("e", b"v", 8), Delete("f")],
        [Get("g"), Get("h/", is_prefix=True)],
    )
    assert [
        (one.key, one.target, one.create_revision, one.mod_revision, one.lease)
        for one in request.compare
    ] == [(b"a", 1, 0, 0, 0), (b"b", 1, 5, 0, 0), (b"c", 2, 0, 6, 0), (b"d", 4, 0, 0, 7)]
    put, delete = request.success
    assert (put.request_put.key, put.request_put.value, put.request_put.lease) == (b"e", b"v", 8)
    assert delete.request_delete_range.key == b"f"
    one, many = request.failure
    assert (one.request_range.key, one.request_range.range_end) == (b"g", b"")
    assert (many.request_range.key, many.request_range.range_end) == (b"h/", b"h0")


def test_a_record_tolerates_fields_of_a_newer_version_and_names_the_key_otherwise() -> None:
    record = DeletedJob(deleted_at="2026-01-01T00:00:00Z")
    assert decoded(KeyValue("k", encoded(record), 1, 1, 0), DeletedJob) == record
    newer = b'{"deleted_at": "2026-01-01T00:00:00Z", "by": "x"}'
    assert decoded(KeyValue("k", newer, 1, 1, 0), DeletedJob) == record
    with pytest.raises(CrawlerError, match="etcd key k does not hold a DeletedJob"):
        decoded(KeyValue("k", b"[]", 1, 1, 0), DeletedJob)


def test_a_publication_is_cut_below_what_etcd_takes() -> None:
    small: list[Put | Delete] = [Delete(str(number)) for number in range(250)]
    large: list[Put | Delete] = [Put(str(number), b"x" * 200_000) for number in range(5)]
    chunks = list(_chunks([*small, *large]))
    assert [change for chunk in chunks for change in chunk] == [*small, *large]
    assert max(len(chunk) for chunk in chunks) <= 100
    for chunk in chunks:
        assert sum(len(one.value) for one in chunk if isinstance(one, Put)) <= 500_000
    assert list(_chunks([])) == []


def test_back_off_grows_to_its_bound() -> None:
    for failures in (0, 1, 3, 1000):
        bound = min(2.0, 0.1 * 2 ** min(failures, 10))
        drawn = [backoff_s(failures, first_s=0.1, longest_s=2.0) for _ in range(200)]
        assert 0 <= min(drawn) <= max(drawn) <= bound
        assert max(drawn) > bound / 2 > min(drawn), "many processes do not come at once"


def test_a_session_leaves_time_for_a_second_renewal_and_for_stopping() -> None:
    """R8: a renewal that hangs, then another one, all before the deadline; a third to stop in."""
    deadline = 1 - session.MARGIN_RATIO
    assert deadline <= 2 / 3
    assert session._BEAT_RATIO <= 1 / 3
    assert session._RENEWAL_RATIO <= 1 / 4
    assert session._CALL_RATIO <= 1 / 4
    assert session._BEAT_RATIO + session._RENEWAL_RATIO < deadline


def test_time_in_suspension_counts_as_time_of_the_lease() -> None:
    """R7: the plain monotonic clock of Linux stands still meanwhile."""
    is_linux = sys.platform == "linux"
    assert session._CLOCK == (time.CLOCK_BOOTTIME if is_linux else time.CLOCK_MONOTONIC)


def test_importing_the_package_loads_nothing_heavy_besides_grpc() -> None:
    """A command that lists jobs waits for this import."""
    program = (
        "import sys, common.coord; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=_ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "grpc" in loaded
    assert not loaded & {"structlog", "rich", "redis", "aiohttp", "click", "requests", "uvloop"}


def test_names_are_in_the_order_of_the_numbers_in_them() -> None:
    names = ["", "01", "1", "2", "10", "9" * 5000, "a", "a-2", "a-10", "tasks/j/2", "tasks/j/10"]
    shuffled = names[1::2] + names[::2]
    assert sorted(shuffled, key=in_order) == names
