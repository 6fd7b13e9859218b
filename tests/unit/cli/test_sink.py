"""The sink: killed at any moment it loses no record and writes none twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from common.model.errors import RefusedError
from crawlctl.sink import Sink
from tests.unit.cli.calling import checkout_environment
from tests.unit.cli.streams import SHARDS, FixedStreams

WRITER = """
import asyncio, sys, time
from pathlib import Path
from crawlctl.sink import Sink
from tests.unit.cli.streams import SHARDS, GrowingStreams

async def main(folder, total):
    sink = Sink(folder / "results.jsonl", folder / "checkpoint.json")
    streams = GrowingStreams(total)
    print("ready", flush=True)
    active_s = sink.state.active_s
    while sink.tally.records < total:
        streams.grow()
        await sink.pull(streams, SHARDS)
        if streams.turns % 3 == 0:
            active_s += 1
            sink.save(active_s=active_s)
    sink.save(active_s=active_s)
    sink.close()

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""


def opened(folder: Path) -> Sink:
    return Sink(folder / "results.jsonl", folder / "checkpoint.json")


def written(folder: Path) -> list[str]:
    lines = (folder / "results.jsonl").read_text().splitlines()
    return [json.loads(line)["url"] for line in lines]


async def test_what_was_saved_is_kept_and_the_rest_is_read_again(tmp_path: Path) -> None:
    streams = FixedStreams(40)
    sink = opened(tmp_path)
    assert await sink.pull(streams.only(10), SHARDS) == 10
    sink.save(active_s=2.5)
    assert await sink.pull(streams.only(25), SHARDS) == 15
    sink.close()  # as a crash would: written, flushed even, but no checkpoint speaks of it
    assert len(written(tmp_path)) == 25
    sink = opened(tmp_path)
    assert len(written(tmp_path)) == 10
    assert sink.state.active_s == 2.5
    await sink.pull(streams, SHARDS)
    sink.save(active_s=3.0)
    sink.close()
    assert sorted(written(tmp_path)) == sorted(streams.urls())


async def test_a_half_written_line_is_cut(tmp_path: Path) -> None:
    streams = FixedStreams(12)
    sink = opened(tmp_path)
    await sink.pull(streams.only(8), SHARDS)
    sink.save(active_s=1.0)
    sink.close()
    with (tmp_path / "results.jsonl").open("ab") as file:
        file.write(b'{"url": "http://h/torn')
    sink = opened(tmp_path)
    await sink.pull(streams, SHARDS)
    sink.save(active_s=2.0)
    sink.close()
    assert sorted(written(tmp_path)) == sorted(streams.urls())


async def test_pulling_again_finds_nothing_new(tmp_path: Path) -> None:
    streams = FixedStreams(1234)
    sink = opened(tmp_path)
    assert await sink.pull(streams, SHARDS) == 1234
    assert await sink.pull(streams, SHARDS) == 0
    sink.close()


async def test_counts_survive_with_the_file(tmp_path: Path) -> None:
    streams = FixedStreams(30)
    sink = opened(tmp_path)
    await sink.pull(streams.only(15), SHARDS)
    sink.save(active_s=1.0)
    await sink.pull(streams, SHARDS)
    sink.close()
    sink = opened(tmp_path)
    await sink.pull(streams, SHARDS)
    records = [msgspec.json.decode(record) for record in streams.records()]
    assert sink.tally.records == 30
    assert sink.tally.errors == {
        "dns_not_found": sum(record["error"] is not None for record in records)
    }
    assert sink.tally.answered_seeds == sum(
        record["depth"] == 0 and record["status"] is not None for record in records
    )
    sink.close()


async def test_a_file_that_others_cut_is_refused(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    await sink.pull(FixedStreams(10), SHARDS)
    sink.save(active_s=1.0)
    sink.close()
    os.truncate(tmp_path / "results.jsonl", 3)
    with pytest.raises(RefusedError, match="--fresh"):
        opened(tmp_path)


@pytest.mark.parametrize("content", [b"{", b'{"version": 99}', b""])
def test_a_checkpoint_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoint.json").write_bytes(content)
    with pytest.raises(RefusedError, match="--fresh"):
        opened(tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_a_writer_killed_at_any_moment_loses_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    total = 6000
    deadline = time.monotonic() + 60
    kills = 0
    while True:
        assert time.monotonic() < deadline
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(total)],
            env=checkout_environment(),
            stdout=subprocess.PIPE,
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            try:
                # Later kills come later, so that the writer gets to its end at last.
                assert process.wait(chance.uniform(0, 0.1) + kills * 0.05) == 0
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                kills += 1
    assert kills > 0
    assert sorted(written(tmp_path)) == sorted(FixedStreams(total).urls())
    sink = opened(tmp_path)
    assert sink.tally.records == total
    assert asyncio.run(sink.pull(FixedStreams(total), SHARDS)) == 0
    sink.close()
