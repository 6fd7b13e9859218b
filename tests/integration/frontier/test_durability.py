"""A crash that takes back what was acknowledged last: nobody acts on it, and nothing is lost.

kill -9 of a server alone loses nothing, since the system still writes what the server had handed
over. So the loss is made: the log is put back as it was when it was synced, before the restart.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from common.frontier import FrontierClient, RedisOptions, durable
from common.frontier.replies import Adopted, Refusal
from common.frontier.results import ResultGroup
from common.frontier.server import Durability
from common.model.errors import FrontierUnavailable
from common.model.job import JobSpec
from tests.integration.frontier.conftest import Starter
from tests.integration.frontier.shard import (
    FENCE,
    JOB,
    Shard,
    claim,
    commit,
    drain,
    finished,
    pages,
    server_info,
)
from tests.support.servers import RedisServer, stopping


class Crash:
    """Takes a server back to a copy of its log."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.server = server
        self.log = server.folder / "appendonlydir"
        self.copy = folder / "copy"

    async def remember(self, shard: Shard) -> None:
        """Keep the log as it is: what a crash of the machine is to bring back."""
        deadline = asyncio.get_running_loop().time() + 30
        while (
            b"aof_buffer_length:0"
            not in (await shard.client.commands([("INFO", "persistence")]))[0]
        ):
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)
        await asyncio.to_thread(shutil.copytree, self.log, self.copy)

    def happen(self) -> None:
        self.server.kill()
        shutil.rmtree(self.log)
        shutil.copytree(self.copy, self.log)
        self.server.launch()
        self.server.wait_ready()


@pytest.fixture
def crash(start_server: Starter, tmp_path: Path) -> Iterator[Crash]:
    server = start_server(tmp_path / "data", options=("--appendfsync", "everysec"))
    with stopping(server):
        yield Crash(server, tmp_path)


@pytest.fixture
async def shard(crash: Crash, cluster_name: str) -> AsyncIterator[Shard]:
    client = FrontierClient(RedisOptions(urls=(crash.server.url,)))
    await client.open()
    spec = JobSpec(shards=1, delay=0, per_host=32, max_pages=100)
    shard = Shard(client, cluster_name, spec)
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(durable, "HORIZON_S", 0.0)  # no crash takes back what was written before it
        await shard.create()
    yield shard
    await client.close()


async def _reconnected(shard: Shard) -> None:
    with pytest.raises(FrontierUnavailable):
        await shard.stats()
    await shard.stats()


async def test_waiting_for_durability_waits_for_the_log(shard: Shard, crash: Crash) -> None:
    """Nothing but what was synced comes back: so after the wait, the offer is in the log's file."""
    assert (await server_info(shard.client)).durability is Durability.DELAYED
    assert not shard.client.is_durable
    await shard.offer(*pages(20))
    await shard.client.wait_durable([shard.keys.meta])
    await asyncio.to_thread(shutil.copytree, crash.log, crash.copy)
    await asyncio.to_thread(crash.happen)
    await _reconnected(shard)
    assert (await shard.counters())["discovered"] == 20


async def test_a_server_that_cannot_be_asked_is_waited_for_by_the_clock(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "HORIZON_S", 0.5)
    async with (await shard.client.servers())[0].link() as link:
        link.cannot_wait = True
    began = asyncio.get_running_loop().time()
    await shard.client.wait_durable([shard.keys.meta])
    assert asyncio.get_running_loop().time() - began >= 0.5


async def test_what_was_decided_under_one_run_is_not_written_under_another(
    shard: Shard, crash: Crash
) -> None:
    """A page's links were taken, then forgotten by the crash: its record must not be written."""
    owner = await shard.adopted()
    await shard.offer(*pages(3))
    await shard.master.stats()
    assert await shard.master.grant(0, 100, fence=FENCE) == 100
    held = (await claim(owner, 3)).claims
    await crash.remember(shard)
    await shard.offer(*pages(9))  # the links of those pages
    await asyncio.to_thread(crash.happen)
    await _reconnected(shard)
    # Somebody adopted it under the new run already, as a call of ours without an answer may have.
    other = shard.owner(10)
    assert isinstance(await shard.adopt(other), Adopted)
    assert await owner.settle(finished=[finished(one) for one in held]) is Refusal.RUN
    assert (await shard.counters())["fetched"] == 0
    assert isinstance(await shard.adopt(owner), Adopted)
    await owner.recover((), dead_below=0)
    await shard.offer(*pages(9))
    await drain(owner)
    assert sorted((await shard.assert_sound()).results) == pages(9)


async def test_what_a_former_server_run_took_is_not_taken_as_kept(
    shard: Shard, crash: Crash
) -> None:
    """P8: its data may be an older copy, so the links are offered again and not remembered."""
    await shard.adopted()
    await shard.offer(*pages(3))
    runs = {0: shard.offers.run(0)}
    assert await shard.offers.kept(runs) == [0]
    await crash.remember(shard)
    await shard.offer(*pages(5))
    await asyncio.to_thread(crash.happen)
    await _reconnected(shard)
    assert await shard.offers.kept(runs) == []


async def test_seeds_that_a_crash_took_back_stay_staged(shard: Shard, crash: Crash) -> None:
    await shard.adopted()
    await shard.master.stage(1, pages(5))
    await crash.remember(shard)
    assert await shard.master.offer_seeds(pages(5)) is None
    await asyncio.to_thread(crash.happen)
    await _reconnected(shard)
    assert await shard.master.unstage(1, fence=FENCE) is Refusal.RUN
    assert (await shard.stats()).staged == 1


async def test_budget_is_not_given_out_by_what_was_seen_before_a_crash(
    shard: Shard, crash: Crash
) -> None:
    await shard.master.stats()
    assert await shard.master.grant(0, 50, fence=FENCE) == 50
    await crash.remember(shard)
    assert await shard.master.grant(0, -50, fence=FENCE) == -50
    await asyncio.to_thread(crash.happen)
    with pytest.raises(FrontierUnavailable):
        await shard.client.current_run(shard.keys.meta)
    assert await shard.master.grant(0, 50, fence=FENCE) == 0, "it still has what was taken back"
    assert (await shard.stats()).grant == 50


async def test_a_job_is_not_sealed_by_what_a_crash_takes_back(
    shard: Shard, crash: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await shard.adopted()
    before = await shard.master.stats()
    await crash.remember(shard)

    wait_durable = shard.client.wait_durable

    async def crash_meanwhile(keys: Sequence[str]) -> list[str]:
        await asyncio.to_thread(crash.happen)
        return await wait_durable(keys)

    monkeypatch.setattr(shard.client, "wait_durable", crash_meanwhile)
    with pytest.raises(FrontierUnavailable):
        await shard.master.seal(before, fence=FENCE)
    assert isinstance(await shard.adopt(owner), Adopted)


async def test_records_are_given_out_only_once_they_are_durable(
    shard: Shard, crash: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the page is fetched again after the crash, and its record leaves twice."""
    owner = await shard.adopted()
    await shard.master.stats()
    await shard.master.grant(0, 100, fence=FENCE)
    await shard.offer(*pages(2))
    group = ResultGroup(
        shard.client, cluster=shard.cluster, job=JOB, shards=1, group="g", reader="r"
    )
    assert await group.enrol() == 0
    held = (await claim(owner, 2)).claims
    await crash.remember(shard)
    await commit(owner, held)

    wait_durable = shard.client.wait_durable

    async def crash_meanwhile(keys: Sequence[str]) -> list[str]:
        await asyncio.to_thread(crash.happen)
        return await wait_durable(keys)

    with monkeypatch.context() as patched:
        patched.setattr(shard.client, "wait_durable", crash_meanwhile)
        with pytest.raises(FrontierUnavailable):
            await group.new(0, count=10)
    assert isinstance(await shard.adopt(owner), Adopted)
    assert await group.pending(0, after="0-0", count=10) == []
    await owner.recover((), dead_below=0)
    await drain(owner)
    assert len(await group.new(0, count=10)) == 2
