"""Whole crawls on the servers of the run, each under a cluster name of its own."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.crawling import Crawling, crawls
from tests.support.servers import EtcdServer, RedisServer


@pytest.fixture
def crawling(etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str) -> Crawling:
    """Runs a cluster for a while; takes how many ``workers``."""
    return partial(crawls, etcd_server.endpoint, redis_server.url, cluster=cluster_name)
