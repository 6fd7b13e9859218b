"""Everything of a deleted job goes, and nothing of any other."""

from __future__ import annotations

import pytest

from common.frontier.client import FrontierClient
from common.frontier.keys import keys_of_job
from common.frontier.removal import remove
from common.frontier.replies import Refusal
from common.model.ids import JobId
from tests.integration.frontier.conftest import MakeShard
from tests.integration.frontier.shard import JOB, claim, commit, finished, pages


async def keys(client: FrontierClient, pattern: str) -> list[bytes]:
    (found,) = await client.commands([("KEYS", pattern)])
    return sorted(found)


@pytest.mark.one_server
async def test_every_key_of_the_job_goes_and_no_other(
    make_shard: MakeShard, cluster_name: str
) -> None:
    shard = await make_shard(shards=3, per_host=50).create()
    owner = await shard.adopted()
    await shard.offer(*(f"http://h{n}.example/" for n in range(1500)))
    await shard.offer(*pages(50))
    held = (await claim(owner, 20)).claims
    await commit(owner, held[:10])
    await shard.master.stage(7, pages(1))
    others = [
        f"crawlctl:{cluster_name}:{{{JOB}2:0}}:meta",
        f"crawlctl:{cluster_name}-2:{{{JOB}:0}}:meta",
    ]
    for other in others:
        await shard.client.commands([("SET", other, "kept")])
    before = len(await keys(shard.client, keys_of_job(cluster_name, JOB)))
    assert before > 1500
    steps = [count async for count in remove(shard.client, cluster=cluster_name, job=JobId(JOB))]
    assert before == sum(steps)
    assert len(steps) > 1
    assert [] == await keys(shard.client, keys_of_job(cluster_name, JOB))
    assert sorted(name.encode() for name in others) == sorted(
        await keys(shard.client, f"crawlctl:{cluster_name}*")
    )
    # Whatever a worker that does not know yet still tries, it brings nothing back.
    assert await owner.settle(finished=[finished(held[11])]) is Refusal.MISSING
    assert await shard.try_offer(*pages(2)) is Refusal.MISSING
    await owner.free([(held[11].number, 0)])
    assert [] == await keys(shard.client, keys_of_job(cluster_name, JOB))
    await shard.client.commands([("UNLINK", *others)])
