"""How the two private servers are run: arguments, configuration, ports, secrets.

Both listen on loopback only. Redis asks for a password that lies in the folder (0600); etcd has
none: other users of the same machine could reach it, as the ADR on embedded servers says.
Servers run inside their data folder and are given relative names, so that no path needs quoting.
"""

from __future__ import annotations

import hashlib
import os
import platform
import random
import secrets
import socket
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal

from common.embedded.binaries import Program
from common.embedded.folder import Folder, write_atomically

HOST: Final = "127.0.0.1"

Durability = Literal["always", "everysec"]
"""When the data server's log is on disk: before it answers, or within a second."""

_PORTS: Final = range(20_000, 30_000)
"""Below the range the kernel gives to outgoing connections on Linux and macOS. From inside it, a
client that dials a server which is just being restarted could be given that very port."""

_ETCD_FLAGS: Final = (
    # A single member has nobody to wait for: short timeouts mean a quick start, and 20 ms cost
    # about 1 % of a core.
    "--heartbeat-interval=20",
    "--election-timeout=200",
    # Little is written, so what is kept for followers (there are none) and for history may be
    # small; the default would keep 100,000 entries in memory.
    "--snapshot-count=10000",
    "--auto-compaction-mode=periodic",
    "--auto-compaction-retention=10m",
    "--logger=zap",
    "--log-level=warn",
)

_REDIS_CONFIG: Final = """\
port {port}
bind {host}
protected-mode yes
requirepass {password}
databases 1
daemonize no
dir ./
loglevel notice
logfile ""
appendonly yes
appendfsync {durability}
save ""
maxmemory-policy noeviction
set-max-intset-entries 512
"""


def free_ports(count: int, *, taken: Collection[int] = ()) -> list[int]:
    """Return distinct ports of loopback that nobody listens on right now.

    Somebody may take one before the server does; the server then ends, and the caller tries others.
    """
    found: list[int] = []
    candidates = random.sample(_PORTS, len(_PORTS))
    for port in candidates:
        if len(found) == count:
            break
        if port not in taken and _is_free(port):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the servers do: a port with closed connections lingering on it is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def load_secret(folder: Folder) -> str:
    """Return the password of this folder's data server, made on first use."""
    path = folder.own / "secret"
    try:
        return path.read_text("ascii").strip()
    except FileNotFoundError:
        secret = secrets.token_hex(20)
        write_atomically(path, secret.encode() + b"\n")
        return secret


def member_name(secret: str) -> str:
    """Return the name by which this folder's etcd is known: public, and nobody else's."""
    return f"crawlctl-{hashlib.sha256(secret.encode()).hexdigest()[:20]}"


def etcd_plan(folder: Folder, program: Program, *, port: int, secret: str) -> dict[str, Any]:
    """Return how the keeper is to run etcd."""
    name = member_name(secret)
    client = f"http://{HOST}:{port}"
    # A single member never dials a peer: any port will do, and the kernel gives a free one.
    peer = f"http://{HOST}:0"
    argv = [
        program.path,
        f"--name={name}",
        "--data-dir=data",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={name}={peer}",
        *_ETCD_FLAGS,
    ]
    return {
        "name": "etcd",
        "argv": argv,
        "cwd": str(folder.etcd),
        "log": str(folder.logs / "etcd.log"),
    }


def redis_plan(
    folder: Folder, program: Program, *, port: int, secret: str, durability: Durability
) -> dict[str, Any]:
    """Write the configuration of the data server and return how the keeper is to run it."""
    config = _REDIS_CONFIG.format(host=HOST, port=port, password=secret, durability=durability)
    write_atomically(folder.redis / "redis.conf", config.encode())
    return {
        "name": "redis",
        "argv": [program.path, "redis.conf"],
        "cwd": str(folder.redis),
        "log": str(folder.logs / "redis.log"),
    }


def server_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the servers: etcd reads every flag from it as well."""
    kept = {name: value for name, value in environ.items() if not name.startswith("ETCD_")}
    if platform.machine() in ("aarch64", "arm64"):
        # Releases before 3.5 ask for this before they run on ARM.
        kept["ETCD_UNSUPPORTED_ARCH"] = "arm64"
    # The servers' own messages are searched for "address already in use".
    return kept | {"LC_ALL": "C"}


def has_data(folder: Folder) -> bool:
    """Tell whether servers have run here before."""
    return os.path.lexists(folder.etcd / "data")
