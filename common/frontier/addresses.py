"""Where data servers are: what ``--redis`` says, and what nodes of a cluster say of each other."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.asyncio import Connection, SSLConnection
from redis.asyncio.connection import parse_url

from common.model.errors import SettingsError

if TYPE_CHECKING:
    from common.runtime.settings import Settings

DEFAULT_PORT = 6379


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisOptions:
    """Where the data servers are and how to speak with them."""

    urls: tuple[str, ...]
    """One server, or some nodes of one Redis Cluster."""
    cacert: str | None = None
    cert: str | None = None
    key: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> RedisOptions:
        """Return what the settings of a process say of the data servers."""
        return cls(
            urls=settings.redis_urls,
            cacert=settings.redis_cacert,
            cert=settings.redis_cert,
            key=settings.redis_key,
        )


class Address(NamedTuple):
    """Where a server is and how to connect to it."""

    host: str
    port: int
    kind: type[Connection]
    settings: dict[str, Any]
    """For a connection, host and port included."""

    @property
    def endpoint(self) -> str:
        """``HOST:PORT``, for people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_tls(self) -> bool:
        """Whether connections are encrypted."""
        return issubclass(self.kind, SSLConnection)

    def sibling(self, host: str, port: int) -> Address:
        """Return another node of the same cluster: it is spoken with in the same way."""
        return Address(host, port, self.kind, self.settings | {"host": host, "port": port})


def addresses(options: RedisOptions) -> list[Address]:
    """Return the addresses of ``--redis``.

    Raises:
        SettingsError: none is given, one is no Redis URL, or they cannot be of one cluster.
    """
    if not options.urls:
        raise SettingsError(
            "--redis: give the URL of a server, or those of a Redis Cluster's nodes"
        )
    found = [_address(url, options) for url in options.urls]
    if len(found) > 1:
        _refuse_differing(found)
    return found


def _address(url: str, options: RedisOptions) -> Address:
    try:
        settings: dict[str, Any] = dict(parse_url(url))
    except ValueError as error:
        raise SettingsError(
            f"--redis: {_without_password(url)!r} is not a Redis URL ({error}); "
            "expected redis://[:password@]host:port/db"
        ) from error
    kind: type[Connection] = settings.pop("connection_class", Connection)
    host, port = settings.get("host", "localhost"), settings.get("port", DEFAULT_PORT)
    return Address(host, port, kind, settings | _tls(kind, settings, options))


def _tls(kind: type[Connection], settings: dict[str, Any], options: RedisOptions) -> dict[str, Any]:
    if not issubclass(kind, SSLConnection):
        return {}
    for name in ("cacert", "cert", "key"):
        path = getattr(options, name)
        if path is None:
            continue
        try:
            with Path(path).open("rb"):
                pass
        except OSError as error:
            raise SettingsError.unreadable(f"--redis-{name}", path, error) from error
    return {
        "ssl_ca_certs": options.cacert or settings.get("ssl_ca_certs"),
        "ssl_certfile": options.cert,
        "ssl_keyfile": options.key,
        "ssl_min_version": ssl.TLSVersion.TLSv1_2,
    }


def _refuse_differing(found: Sequence[Address]) -> None:
    """Refuse URLs that could not be nodes of one cluster, all spoken with in one way."""
    if any(one.settings.get("db") for one in found):
        raise SettingsError(
            "--redis: several URLs are nodes of one Redis Cluster, which has database 0 only; "
            "leave the number at the end of each URL out"
        )
    ways = []
    for one in found:
        rest = {k: v for k, v in one.settings.items() if k not in ("host", "port", "db")}
        ways.append((one.kind, rest))
    if any(way != ways[0] for way in ways):
        raise SettingsError(
            "--redis: the nodes of a Redis Cluster are all spoken with in one way; give each URL "
            "the same scheme, user, password and options"
        )


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"{head.split('://')[0]}://***@{tail}" if at else url
