"""Where settings come from, and what is said when one is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.model.errors import SettingsError
from common.runtime import upstate
from common.runtime.settings import DEFAULT_ETCD, DEFAULT_REDIS, NAMES, Settings, resolve
from common.runtime.upstate import UpState


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment without settings whose state folder is empty."""
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def up(environ: dict[str, str], *, pid: int | None = None, cluster: str = "default") -> UpState:
    state = UpState(
        pid=os.getpid() if pid is None else pid,
        data="/somewhere",
        etcd="127.0.0.1:20001",
        redis="redis://:secret@127.0.0.1:20002/0",
    )
    upstate.save(state, cluster, environ)
    return state


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def toml(tmp_path: Path, text: str) -> str:
    path = tmp_path / "crawlctl.toml"
    path.write_text(text)
    return str(path)


def test_defaults_are_a_local_etcd_and_redis(environ: dict[str, str]) -> None:
    assert resolve({}, environ) == Settings()
    assert Settings().etcd_endpoints == (DEFAULT_ETCD,)
    assert Settings().redis_urls == (DEFAULT_REDIS,)


def test_the_first_place_that_has_a_setting_wins(environ: dict[str, str], tmp_path: Path) -> None:
    up(environ, cluster="c")
    places: dict[str, object] = {"cluster": "c"}
    assert resolve(places, environ).etcd_endpoints == ("127.0.0.1:20001",)
    file = toml(tmp_path, 'etcd = "file:1"\nredis = "redis://file:1/0"\ncluster = "c"')
    environ["CRAWLCTL_CONFIG"] = file
    assert resolve({}, environ).etcd_endpoints == ("file:1",)
    environ["CRAWLCTL_ETCD"] = "environment:1"
    assert resolve({}, environ).etcd_endpoints == ("environment:1",)
    assert resolve({"etcd": "option:1"}, environ).etcd_endpoints == ("option:1",)


def test_an_option_names_the_file_even_if_the_environment_names_another(
    environ: dict[str, str], tmp_path: Path
) -> None:
    environ["CRAWLCTL_CONFIG"] = str(tmp_path / "missing.toml")
    file = toml(tmp_path, 'cluster = "mine"')
    assert resolve({"config": file}, environ).cluster == "mine"


def test_lists_are_comma_separated_or_toml_arrays(environ: dict[str, str], tmp_path: Path) -> None:
    assert resolve({"etcd": "a:1, b:2,[::1]:3"}, environ).etcd_endpoints == (
        "a:1",
        "b:2",
        "[::1]:3",
    )
    file = toml(tmp_path, 'etcd = ["a:1", "b:2"]\nlog-level = "debug"\nquiet = true')
    settings = resolve({"config": file}, environ)
    assert settings.etcd_endpoints == ("a:1", "b:2")
    assert settings.log_level == "debug"
    assert settings.quiet


@pytest.mark.parametrize(
    ("text", "expected"), [("1", True), ("yes", True), ("0", False), ("", False), ("off", False)]
)
def test_quiet_in_the_environment_is_a_switch(
    environ: dict[str, str], text: str, expected: bool
) -> None:
    assert resolve({}, environ | {"CRAWLCTL_QUIET": text}).quiet is expected


def test_a_running_up_is_found_by_its_cluster_name(environ: dict[str, str]) -> None:
    state = up(environ)
    found = resolve({}, environ)
    assert (found.etcd_endpoints, found.redis_urls) == ((state.etcd,), (state.redis,))
    assert resolve({"cluster": "other"}, environ) == Settings(cluster="other")


def test_an_up_whose_process_is_gone_is_ignored(environ: dict[str, str]) -> None:
    up(environ, pid=dead_pid())
    assert resolve({}, environ) == Settings()


def test_a_damaged_state_file_is_ignored(environ: dict[str, str]) -> None:
    path = upstate.save(up(environ), "default", environ)
    path.write_text('{"pid": 1')
    assert resolve({}, environ) == Settings()


@pytest.mark.parametrize(
    ("given", "other"),
    [
        ({"etcd": "elsewhere:20001"}, "--redis"),
        ({"etcd": "127.0.0.1:2379"}, "--redis"),
        ({"etcd": "127.0.0.1:20001,b:20001"}, "--redis"),
        ({"redis": DEFAULT_REDIS}, "--etcd"),
    ],
)
def test_one_server_beside_an_up_is_refused_naming_it(
    environ: dict[str, str], given: dict[str, str], other: str
) -> None:
    state = up(environ)
    with pytest.raises(SettingsError) as refused:
        resolve(given, environ)
    (name,) = given
    said = str(refused.value)
    assert said.startswith(f"--{name}: 'crawlctl up' runs cluster 'default' in /somewhere")
    assert f"leave --{name} out" in said
    assert f"give {other} as well" in said
    assert "secret" not in said
    # Not where the user means other services altogether, or another installation.
    both = {"etcd": state.etcd, "redis": DEFAULT_REDIS} | given
    assert resolve(both, environ).redis_urls == (both["redis"],)
    assert resolve(given | {"cluster": "other"}, environ).cluster == "other"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::1]"])
def test_a_server_of_an_up_may_be_given_by_any_name_of_this_machine(
    environ: dict[str, str], host: str
) -> None:
    state = up(environ)
    url = f"redis://:secret@{host}:20002/0"
    found = resolve({"redis": url}, environ)
    assert (found.etcd_endpoints, found.redis_urls) == ((state.etcd,), (url,))
    found = resolve({}, environ | {"CRAWLCTL_ETCD": f"{host}:20001"})
    assert (found.etcd_endpoints, found.redis_urls) == ((f"{host}:20001",), (state.redis,))


def test_only_the_user_can_read_the_state_file(environ: dict[str, str]) -> None:
    path = upstate.save(up(environ), "default", environ)
    assert path.stat().st_mode & 0o077 == 0


def test_a_state_file_is_removed_only_by_the_process_it_names(environ: dict[str, str]) -> None:
    state = up(environ)
    upstate.remove(state.pid + 1, "default", environ)
    assert upstate.load("default", environ) == state
    upstate.remove(state.pid, "default", environ)
    assert upstate.load("default", environ) is None


@pytest.mark.parametrize(
    ("options", "variables", "message"),
    [
        ({"etcd": "localhost"}, {}, "--etcd: 'localhost' is not HOST:PORT"),
        ({"etcd": "http://h:1"}, {}, "--etcd: 'http://h:1' is not HOST:PORT"),
        ({"etcd": "h:70000"}, {}, "--etcd: 'h:70000' is not HOST:PORT"),
        ({"etcd": "h:1,,g:1"}, {}, "--etcd: expected one or more addresses"),
        ({}, {"CRAWLCTL_ETCD": ""}, "CRAWLCTL_ETCD: expected one or more addresses"),
        ({"redis": "h:6379"}, {}, "--redis: 'h:6379': expected redis://"),
        ({"redis": "redis://h:6379/x"}, {}, "expected redis://"),
        ({"redis": "redis://h:99999/0"}, {}, "expected redis://"),
        ({}, {"CRAWLCTL_REDIS": "http://h/"}, "CRAWLCTL_REDIS: 'http://h/': expected redis://"),
        ({"cluster": "a/b"}, {}, "--cluster: 'a/b' is not a valid name"),
        ({"log_level": "loud"}, {}, "--log-level: 'loud' is not one of debug, info"),
        ({}, {"CRAWLCTL_LOG_FORMAT": "xml"}, "CRAWLCTL_LOG_FORMAT: 'xml' is not one of"),
        ({}, {"CRAWLCTL_QUIET": "maybe"}, "CRAWLCTL_QUIET: 'maybe' is neither true nor false"),
        ({"etcd_cacert": "/no/ca.pem"}, {}, "--etcd-cacert: there is no file '/no/ca.pem'"),
        ({"etcd_user": "onlyname"}, {}, "--etcd-user: expected NAME:PASSWORD"),
        ({"config": "/no/file.toml"}, {}, "--config: cannot read '/no/file.toml'"),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_expected(
    environ: dict[str, str], options: dict[str, object], variables: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve(options, environ | variables)
    assert message in str(caught.value)


def test_a_wrong_toml_entry_is_named_with_its_file(environ: dict[str, str], tmp_path: Path) -> None:
    file = toml(tmp_path, "etcd = 5")
    with pytest.raises(SettingsError, match=r"etcd in .*crawlctl\.toml: expected"):
        resolve({"config": file}, environ)
    file = toml(tmp_path, 'reddis = "x"')
    with pytest.raises(SettingsError, match="unknown entry 'reddis'"):
        resolve({"config": file}, environ)
    file = toml(tmp_path, "etcd = ")
    with pytest.raises(SettingsError, match="is not valid TOML"):
        resolve({"config": file}, environ)


def test_a_program_with_its_own_servers_ignores_endpoints(environ: dict[str, str]) -> None:
    up(environ)
    environ["CRAWLCTL_ETCD"] = "nonsense"
    settings = resolve({"log_level": "error"}, environ, with_services=False)
    assert settings == Settings(log_level="error")


@pytest.mark.parametrize("name", ["etcd", "redis", "etcd_user", "redis_key"])
def test_endpoints_as_options_of_a_program_with_its_own_servers_are_wrong(
    name: str, environ: dict[str, str]
) -> None:
    option = f"--{name.replace('_', '-')}"
    with pytest.raises(SettingsError, match=f"^{option}: .*no servers but its own; leave it out"):
        resolve({name: "h:1"}, environ, with_services=False)


def test_secrets_may_be_references(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p@ss\n")
    environ |= {"REDIS_PASSWORD": "s/e?c", "REDIS_URL": "redis://:hidden@h:1/0"}
    settings = resolve(
        {
            "etcd_user": f"root:@{tmp_path / 'password'}",
            "redis": "redis://:env:REDIS_PASSWORD@h:6379/0",
        },
        environ,
    )
    assert settings.etcd_login == ("root", "p@ss")
    assert settings.redis_urls == ("redis://:s%2Fe%3Fc@h:6379/0",)
    assert resolve({"redis": "env:REDIS_URL"}, environ).redis_urls == ("redis://:hidden@h:1/0",)


def test_secrets_are_neither_shown_nor_in_the_repr_nor_in_messages(
    environ: dict[str, str],
) -> None:
    settings = resolve({"etcd_user": "u:topsecret", "redis": "redis://x:topsecret@h:1/0"}, environ)
    assert "topsecret" not in repr(settings)
    shown = settings.shown()
    assert "topsecret" not in str(shown)
    assert shown["etcd_user"] == "u:***"
    assert shown["redis"] == ["redis://x:***@h:1/0"]
    with pytest.raises(SettingsError) as caught:
        resolve({"redis": "redis://x:topsecret@h:1/zero"}, environ)
    assert "topsecret" not in str(caught.value)


def test_every_setting_is_shown_by_its_name() -> None:
    assert set(Settings().shown()) == set(NAMES)
