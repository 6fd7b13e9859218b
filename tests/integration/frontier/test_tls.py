"""TLS with certificates of both sides."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from common.frontier.client import FrontierClient, RedisOptions
from common.model.errors import FrontierUnavailable, SettingsError
from tests.support.servers import ServerStartError, free_ports, start_redis, stopping


def _certificate(folder: Path) -> tuple[str, str]:
    """Make a certificate for loopback that is its own authority; return it and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("NO OPENSSL: put openssl on PATH to run this test")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=node"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


async def test_both_sides_show_a_certificate(tmp_path: Path) -> None:
    cert, key = _certificate(tmp_path)
    (port,) = free_ports(1)
    options = (
        *("--tls-port", str(port), "--tls-cert-file", cert),
        *("--tls-key-file", key, "--tls-ca-cert-file", cert),
    )
    try:
        server = start_redis(tmp_path / "redis", options=options)
    except ServerStartError:
        pytest.skip("NO TLS: this Redis or Valkey was built without TLS")
    with stopping(server):
        urls = (f"rediss://127.0.0.1:{port}/0",)
        client = FrontierClient(RedisOptions(urls=urls, cacert=cert, cert=cert, key=key))
        await client.open()
        assert client.run_id
        await client.close()
        for wrong in (
            RedisOptions(urls=urls, cert=cert, key=key),
            RedisOptions(urls=urls, cacert=cert),
        ):
            with pytest.raises(FrontierUnavailable, match=f"127.0.0.1:{port}"):
                await FrontierClient(wrong).open()


@pytest.mark.parametrize("name", ["cacert", "cert", "key"])
def test_a_certificate_file_that_is_missing_is_a_setting(name: str, tmp_path: Path) -> None:
    files = dict.fromkeys(("cacert", "cert", "key"), __file__) | {name: str(tmp_path / "none.pem")}
    with pytest.raises(SettingsError, match=rf"--redis-{name}: .*none\.pem cannot be read"):
        FrontierClient(RedisOptions(urls=("rediss://127.0.0.1:1/0",), **files))
