"""Settings of one process: where its services are and how it speaks.

Each setting is taken from the first place that has it: the option, ``CRAWLCTL_<NAME>`` in the
environment, the TOML file (``--config`` or ``CRAWLCTL_CONFIG``), a running ``crawlctl up``, the
default. Fixed once resolved and passed on explicitly. What a job does is in its spec, not here.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from common.model.errors import SettingsError, UsageError
from common.model.ids import checked_name
from common.runtime import upstate
from common.runtime.endpoints import etcd_endpoint, etcd_place, redis_place, redis_url
from common.runtime.secrets import HIDDEN, mask_url, reveal

DEFAULT_ETCD: Final = "127.0.0.1:2379"
DEFAULT_REDIS: Final = "redis://127.0.0.1:6379/0"
OPEN_TIMEOUT_S: Final = 10.0
"""How long a program waits for etcd and for Redis at its start: they may be starting beside it."""
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a process is told from outside, checked; secrets are revealed, and not in the repr."""

    etcd_endpoints: tuple[str, ...] = (DEFAULT_ETCD,)
    """``HOST:PORT`` of each etcd member."""
    etcd_cacert: str | None = None
    etcd_cert: str | None = None
    etcd_key: str | None = None
    """PEM files for TLS to etcd; plain text without a CA certificate."""
    etcd_user: str | None = field(default=None, repr=False)
    """``NAME:PASSWORD``."""
    redis_urls: tuple[str, ...] = field(default=(DEFAULT_REDIS,), repr=False)
    """One server, or several nodes of one Cluster."""
    redis_cacert: str | None = None
    redis_cert: str | None = None
    redis_key: str | None = None
    """PEM files for TLS to Redis; used with ``rediss://``."""
    cluster: str = "default"
    """Names the installation: all its keys in etcd and Redis begin with it."""
    log_level: str = "info"
    log_format: str = "text"
    quiet: bool = False
    """No progress and no notes: results and errors only."""

    @property
    def etcd_login(self) -> tuple[str, str] | None:
        """Return name and password for etcd, or None without authentication."""
        if self.etcd_user is None:
            return None
        name, _, password = self.etcd_user.partition(":")
        return name, password

    def shown(self) -> dict[str, object]:
        """Return the settings for people to read, by option name, with secrets hidden."""
        user = self.etcd_login
        return {
            "etcd": list(self.etcd_endpoints),
            "etcd_cacert": self.etcd_cacert,
            "etcd_cert": self.etcd_cert,
            "etcd_key": self.etcd_key,
            "etcd_user": f"{user[0]}:{HIDDEN}" if user else None,
            "redis": [mask_url(url) for url in self.redis_urls],
            "redis_cacert": self.redis_cacert,
            "redis_cert": self.redis_cert,
            "redis_key": self.redis_key,
            "cluster": self.cluster,
            "log_level": self.log_level,
            "log_format": self.log_format,
            "quiet": self.quiet,
        }


class _Given(NamedTuple):
    """A raw value and where it was found, as messages name it."""

    value: object
    where: str


def _text(given: _Given, _environ: Mapping[str, str]) -> str:
    if not isinstance(given.value, str) or not given.value:
        raise SettingsError(f"{given.where}: expected a text, not {given.value!r}")
    return given.value


def _texts(given: _Given) -> list[str]:
    """Return the parts of a comma-separated text or of a TOML array of texts."""
    raw = given.value.split(",") if isinstance(given.value, str) else given.value
    if isinstance(raw, list | tuple) and all(isinstance(part, str) for part in raw):
        parts = [part.strip() for part in raw]
        if parts and all(parts):
            return parts
    raise SettingsError(
        f"{given.where}: expected one or more addresses separated by commas, without empty ones"
    )


def _etcd(given: _Given, _environ: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(etcd_endpoint(part, where=given.where) for part in _texts(given))


def _redis(given: _Given, environ: Mapping[str, str]) -> tuple[str, ...]:
    parts = _texts(given)
    if len(parts) == 1 and parts[0].startswith(("@", "env:")):
        revealed = reveal(parts[0], field=given.where, environ=environ)
        parts = _texts(_Given(revealed, given.where))
    return tuple(redis_url(part, where=given.where, environ=environ) for part in parts)


def _file(given: _Given, environ: Mapping[str, str]) -> str:
    path = _text(given, environ)
    if not Path(path).is_file():
        raise SettingsError(f"{given.where}: there is no file {path!r}")
    return path


def _etcd_user(given: _Given, environ: Mapping[str, str]) -> str:
    text = _text(given, environ)
    if text.startswith(("@", "env:")):
        text = reveal(text, field=given.where, environ=environ)
    name, separator, password = text.partition(":")
    if not name or not separator:
        # The value is not shown: it may be a password alone.
        raise SettingsError(
            f"{given.where}: expected NAME:PASSWORD (the password, or all of it, may be @FILE "
            "or env:NAME)"
        )
    return f"{name}:{reveal(password, field=given.where, environ=environ)}"


def _cluster(given: _Given, environ: Mapping[str, str]) -> str:
    try:
        return checked_name(_text(given, environ), field=given.where)
    except UsageError as error:
        raise SettingsError(str(error)) from error


def _choice(*choices: str) -> Callable[[_Given, Mapping[str, str]], str]:
    def parse(given: _Given, _environ: Mapping[str, str]) -> str:
        value = given.value.lower() if isinstance(given.value, str) else given.value
        if value not in choices:
            raise SettingsError(
                f"{given.where}: {given.value!r} is not one of {', '.join(choices)}"
            )
        return str(value)

    return parse


def _flag(given: _Given, _environ: Mapping[str, str]) -> bool:
    if isinstance(given.value, bool):
        return given.value
    text = given.value.lower() if isinstance(given.value, str) else None
    if text not in (*_TRUE, *_FALSE):
        raise SettingsError(f"{given.where}: {given.value!r} is neither true nor false")
    return text in _TRUE


class _Setting(NamedTuple):
    """One setting: its name for users, its field, its parser."""

    name: str
    attribute: str
    parse: Callable[[_Given, Mapping[str, str]], object]


_CLUSTER: Final = _Setting("cluster", "cluster", _cluster)
_SERVICES: Final = (
    _Setting("etcd", "etcd_endpoints", _etcd),
    _Setting("etcd_cacert", "etcd_cacert", _file),
    _Setting("etcd_cert", "etcd_cert", _file),
    _Setting("etcd_key", "etcd_key", _file),
    _Setting("etcd_user", "etcd_user", _etcd_user),
    _Setting("redis", "redis_urls", _redis),
    _Setting("redis_cacert", "redis_cacert", _file),
    _Setting("redis_cert", "redis_cert", _file),
    _Setting("redis_key", "redis_key", _file),
)
_SPEECH: Final = (
    _Setting("log_level", "log_level", _choice(*LOG_LEVELS)),
    _Setting("log_format", "log_format", _choice(*LOG_FORMATS)),
    _Setting("quiet", "quiet", _flag),
)
NAMES: Final = tuple(setting.name for setting in (*_SERVICES, _CLUSTER, *_SPEECH))
"""Every setting, as named in TOML; options have dashes, variables are ``CRAWLCTL_<NAME>``."""


FindUp = Callable[[str, Mapping[str, str]], upstate.UpState | None]


def resolve(
    options: Mapping[str, object],
    environ: Mapping[str, str] | None = None,
    *,
    default_log_level: str = "info",
    with_services: bool = True,
    find_up: FindUp = upstate.load,
) -> Settings:
    """Return the settings of this process.

    Args:
        options: values given as options, by setting name, plus ``config``; None means not given.
        environ: the environment; the process's own by default.
        default_log_level: for programs that speak less than a node does.
        with_services: False for a program with servers of its own, or without any: endpoints from
            elsewhere do not matter, and as an option they are wrong.
        find_up: returns the running ``up`` of a cluster name.

    Raises:
        SettingsError: naming the option, variable or TOML entry and what was expected.
    """
    environ = os.environ if environ is None else environ
    if not with_services:
        _refuse_services(options)
    places = _places(options, environ)
    values: dict[str, object] = {"log_level": default_log_level}
    where: dict[str, str] = {}
    for setting in (_CLUSTER, *_SPEECH, *(_SERVICES if with_services else ())):
        given = _find(setting.name, places)
        if given is not None:
            values[setting.attribute] = setting.parse(given, environ)
            where[setting.attribute] = given.where
    if with_services and not {"etcd_endpoints", "redis_urls"} <= values.keys():
        cluster = str(values.get("cluster", "default"))
        state = find_up(cluster, environ)
        if state is not None:
            _refuse_mixing(values, where, state, cluster)
            own = {"etcd_endpoints": (state.etcd,), "redis_urls": (state.redis,)}
            values = own | values
    return Settings(**values)  # type: ignore[arg-type]  # each parser returns its field's type


def _refuse_services(options: Mapping[str, object]) -> None:
    for setting in _SERVICES:
        if options.get(setting.name) is not None:
            raise SettingsError(
                f"{_option(setting.name)}: this command goes to no servers but its own; leave it "
                "out (crawlctl submit gives a job to a running cluster)"
            )


_Place = tuple[Mapping[str, object], Callable[[str], str]]


def _places(options: Mapping[str, object], environ: Mapping[str, str]) -> list[_Place]:
    """Return the places to look in, first wins, each with how it names a setting."""
    variables = {
        name: environ[_variable(name)] for name in (*NAMES, "config") if _variable(name) in environ
    }
    file = options.get("config") or variables.get("config")
    places: list[_Place] = [(options, _option), (variables, _variable)]
    if file:
        places.append((_read_toml(str(file)), lambda name: f"{name} in {file}"))
    return places


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return f"CRAWLCTL_{name.upper()}"


def _find(name: str, places: list[_Place]) -> _Given | None:
    for values, naming in places:
        if values.get(name) is not None:
            return _Given(values[name], naming(name))
    return None


def _read_toml(path: str) -> dict[str, object]:
    try:
        with Path(path).open("rb") as file:
            entries = tomllib.load(file)
    except OSError as error:
        raise SettingsError.unreadable("--config", path, error) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config: {path} is not valid TOML ({error})") from error
    entries = {name.replace("-", "_"): value for name, value in entries.items()}
    unknown = sorted(set(entries) - set(NAMES))
    if unknown:
        raise SettingsError(
            f"--config: unknown entry {unknown[0]!r} in {path}; known are {', '.join(NAMES)}"
        )
    return entries


def _refuse_mixing(
    values: Mapping[str, object], where: Mapping[str, str], state: upstate.UpState, cluster: str
) -> None:
    """Refuse one server of an ``up`` beside one from elsewhere.

    A job would be created in one installation and its pages looked for in another.
    """
    for name, own, place, other in (
        ("etcd_endpoints", state.etcd, etcd_place, "--redis"),
        ("redis_urls", state.redis, redis_place, "--etcd"),
    ):
        given = values.get(name)
        if isinstance(given, tuple) and {place(own)} != set(map(place, given)):
            raise SettingsError(
                f"{where[name]}: 'crawlctl up' runs cluster {cluster!r} in {state.data} (process "
                f"{state.pid}) with servers of its own; leave {where[name]} out to use them, give "
                f"{other} as well to use others, or choose another --cluster"
            )
