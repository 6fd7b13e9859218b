"""crawlctl as an operator runs it by hand: three etcd members, a data server, nodes as processes.

Everything is started through the command line. Nodes write what they have to say into a file each,
and all of them are gone when the block is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common.coord import EtcdOptions, connect
from tests.support import etcdusers
from tests.support.certificates import certificates
from tests.support.cli import Ran, Running, crawlctl, environment, running
from tests.support.servers import start_etcd_cluster, start_redis, stopping

_REDIS_USER = "crawler"
_REDIS_PASSWORD = "pa:ss word"  # of a server that lives for one test


class Node:
    """A master or a worker."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def kill(self) -> None:
        """Kill -9."""
        self.process.kill()
        self.process.wait()


class Installation:
    """Servers that run, and the nodes and commands that are led to them."""

    def __init__(
        self, folder: Path, options: Sequence[str], variables: dict[str, str] | None = None
    ) -> None:
        self.nodes: dict[str, Node] = {}
        self._folder = folder
        self._options = list(options)
        self._variables = variables or {}

    def start(self, role: str, node_id: str, *options: str) -> Node:
        """Start a node; does not wait until it is there."""
        log = self._folder / f"{node_id}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "crawlctl", f"start-{role}", "--id", node_id),
                    *(*options, *self._options),
                ],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                env=environment(self._folder, **self._variables),
            )  # fmt: skip
        node = self.nodes[node_id] = Node(process, log)
        return node

    def run(self, *arguments: str, timeout_s: float = 120) -> Ran:
        """Run a command to its end."""
        return crawlctl(
            *arguments, *self._options, home=self._folder, timeout_s=timeout_s, **self._variables
        )

    def json(self, *arguments: str) -> Any:
        """Return the JSON answer of a command that has to work."""
        ran = self.run(*arguments, "--json")
        assert ran.code == 0, ran.err
        return ran.json

    def running(self, *arguments: str) -> contextlib.AbstractContextManager[Running]:
        """Start a command."""
        return running(*arguments, *self._options, home=self._folder, **self._variables)

    def end(self) -> None:
        """Kill what is left."""
        for node in self.nodes.values():
            node.kill()


@contextlib.contextmanager
def installation(folder: Path, *, cluster: str, secure: bool = False) -> Iterator[Installation]:
    """Start the servers, and end all in the end.

    Args:
        folder: for data, logs and secrets.
        cluster: name of the installation.
        secure: TLS to all servers, and users that may do what crawlctl needs and no more.
    """
    with _secure(folder, cluster) if secure else _plain(folder, cluster) as one:
        try:
            yield one
        finally:
            one.end()


@contextlib.contextmanager
def _plain(folder: Path, cluster: str) -> Iterator[Installation]:
    etcd, redis = start_etcd_cluster(folder / "etcd"), start_redis(folder / "redis")
    with stopping(etcd), stopping(redis):
        where = ("--etcd", ",".join(etcd.endpoints), "--redis", redis.url, "--cluster", cluster)
        yield Installation(folder, where)


@contextlib.contextmanager
def _secure(folder: Path, cluster: str) -> Iterator[Installation]:
    files = certificates(folder / "tls")
    served = ("--cert-file", files.cert, "--key-file", files.key)
    etcd = start_etcd_cluster(folder / "etcd", scheme="https", options=served)
    with stopping(etcd):
        may = ("~crawlctl:*", "&*", "+@all", "-@dangerous", "+info", "+config|get")
        users = (
            *("--user", _REDIS_USER, "on", f">{_REDIS_PASSWORD}", *may),
            *("--user", "default", "off"),
        )
        redis = start_redis(folder / "redis", options=users, tls=files)
        with stopping(redis):
            asyncio.run(_add_users(EtcdOptions(endpoints=etcd.endpoints, cacert=files.ca), cluster))
            secret = folder / "etcd-password"
            secret.write_text(etcdusers.PASSWORD + "\n")
            address = redis.url.removeprefix("rediss://")
            yield Installation(
                folder,
                [
                    *("--etcd", ",".join(etcd.endpoints), "--etcd-cacert", files.ca),
                    *("--etcd-user", f"{etcdusers.USER}:@{secret}"),
                    *("--redis", f"rediss://{_REDIS_USER}:env:REDIS_PASSWORD@{address}"),
                    *("--redis-cacert", files.ca),
                    *("--cluster", cluster),
                ],
                {"REDIS_PASSWORD": _REDIS_PASSWORD},
            )


async def _add_users(options: EtcdOptions, cluster: str) -> None:
    coord = await connect(options, cluster=cluster)
    try:
        await etcdusers.with_users(coord)
    finally:
        await coord.close()
