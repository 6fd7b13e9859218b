"""One etcd endpoint: its channel, and whether anything can be sent on it right now.

There is one channel per endpoint instead of one over all of them, because a member that hangs with
its connections open is then left at the first call that times out, and because host names and the
names in TLS certificates work as they are.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from common.coord import failures
from common.coord.wire import messages
from common.model.errors import CoordUnavailable, SettingsError

if TYPE_CHECKING:
    from common.runtime.settings import Settings

# gRPC tells of connection trouble on standard error by itself; we tell of it in our own errors.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


_UNDECIDED: Final = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)

_CHANNEL_OPTIONS: Final = (
    # etcd closes connections that ping more often than every 5 s, or while no call is open. The
    # third setting is what notices a hung server: without it an open watch on one stays open.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Despite its name: how long one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    # gRPC must never repeat a write on its own.
    ("grpc.enable_retries", 0),
    # Coordination never goes through a web proxy, whatever the environment says.
    ("grpc.enable_http_proxy", 0),
    # Two clients of one process share no connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdOptions:
    """Where etcd is and how to speak with it. Any of the three files turns TLS on."""

    endpoints: tuple[str, ...]
    """``HOST:PORT`` each; names and addresses, IPv6 in brackets."""
    cacert: str | None = None
    cert: str | None = None
    key: str | None = None
    user: str | None = None
    password: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> EtcdOptions:
        """Return what the settings of a process say of etcd."""
        user, password = settings.etcd_login or (None, None)
        return cls(
            endpoints=settings.etcd_endpoints,
            cacert=settings.etcd_cacert,
            cert=settings.etcd_cert,
            key=settings.etcd_key,
            user=user,
            password=password,
        )


class Member:
    """The channel to one endpoint and the services on it. Made inside a running event loop."""

    def __init__(self, endpoint: str, credentials: Any | None) -> None:
        self.endpoint = endpoint
        target = f"dns:///{endpoint}"
        self._channel: Any = (
            messages.insecure_channel(target, options=_CHANNEL_OPTIONS)
            if credentials is None
            else messages.secure_channel(target, credentials, options=_CHANNEL_OPTIONS)
        )
        self.auth: Any = messages.AuthStub(self._channel)
        self.kv: Any = messages.KVStub(self._channel)
        self.lease: Any = messages.LeaseStub(self._channel)
        self.maintenance: Any = messages.MaintenanceStub(self._channel)
        self.watch: Any = messages.WatchStub(self._channel)

    async def connect(self, *, timeout_s: float) -> None:
        """Return once there is a connection, at once if there is one already.

        What fails here was surely not sent: that is what separates "not applied" from "unknown".

        Raises:
            CoordUnavailable: the connection failed, or takes longer than ``timeout_s``.
        """
        try:
            async with asyncio.timeout(timeout_s):
                state = self._channel.get_state(try_to_connect=True)
                while state in _UNDECIDED:
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)
        except TimeoutError:
            raise CoordUnavailable(
                f"etcd at {self.endpoint}: no connection within {timeout_s:.1f} s"
            ) from None
        if state is grpc.ChannelConnectivity.READY:
            return
        # The channel does not tell why it failed; a call on it does, without waiting.
        try:
            await self.status(timeout_s=timeout_s)
        except messages.AioRpcError as error:
            raise CoordUnavailable(f"etcd at {self.endpoint}: {failures.reason(error)}") from error

    async def status(self, *, timeout_s: float) -> Any:
        """Ask the member about itself; works without a leader."""
        return await self.maintenance.Status(messages.StatusRequest(), timeout=timeout_s)

    async def close(self) -> None:
        """Close the connection; open calls end."""
        await self._channel.close()


def credentials(options: EtcdOptions) -> Any | None:
    """Return the TLS credentials, or None for plain text.

    Raises:
        SettingsError: a file cannot be read, or only one of certificate and key is given.
    """
    if not (options.cacert or options.cert or options.key):
        return None
    if bool(options.cert) != bool(options.key):
        given, missing = ("cert", "key") if options.cert else ("key", "cert")
        raise SettingsError(f"--etcd-{missing}: missing; --etcd-{given} needs both")
    return grpc.ssl_channel_credentials(
        root_certificates=_read(options.cacert, option="--etcd-cacert"),
        private_key=_read(options.key, option="--etcd-key"),
        certificate_chain=_read(options.cert, option="--etcd-cert"),
    )


def _read(path: str | None, *, option: str) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SettingsError.unreadable(option, path, error) from error
