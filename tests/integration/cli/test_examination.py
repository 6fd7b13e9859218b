"""What doctor says of services it cannot use."""

from __future__ import annotations

from common.runtime.settings import Settings
from crawlctl.diagnosis import examine
from crawlctl.findings import Status
from tests.support.servers import RedisServer


async def test_a_wrong_password_has_another_remedy_than_a_server_that_is_not_there(
    redis_server: RedisServer,
) -> None:
    url = redis_server.url.replace("redis://", "redis://nobody:wrong@")
    settings = Settings(etcd_endpoints=("127.0.0.1:1",), redis_urls=(url,))
    findings = {one.check: one for one in await examine(settings)}
    etcd, redis = findings["etcd.reachable"], findings["redis.reachable"]
    assert etcd.status is Status.UNREACHABLE
    assert "start etcd" in str(etcd.remedy)
    assert redis.status is Status.FAILED
    assert "USER:PASSWORD" in str(redis.remedy)
