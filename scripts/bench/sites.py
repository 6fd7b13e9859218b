"""The sites that are crawled: served by one nginx process on loopback, at a port that was free.

``docs``   Debian's rust-doc, about 32,000 heavy pages of one host (apt-get install rust-doc)
``small``  generated pages of 3 to 10 KB with 40 links each, one host
``eight``  Debian's python3.11-doc, 530 pages, on eight hosts
``wide``   500 pages as those of small, on 300 hosts
``endless``  as small, but each page has two links that nobody has seen before
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

NAMES = ("docs", "small", "eight", "wide", "endless")
RUST_DOC = Path("/usr/share/doc/rust-doc/html")
PYTHON_DOC = Path("/usr/share/doc/python3.11/html")

_UNIQUE = "0-unique-0"
"""Stands in the pages of the endless site for a number that no two answers share."""

# One worker, as one program is measured; the log is on, as a site's would be.
_CONFIG = """
worker_processes 1; pid {folder}/nginx.pid; daemon off; {user}
events {{ worker_connections 8192; }}
http {{
  include /etc/nginx/mime.types; sendfile on; keepalive_requests 1000000; keepalive_timeout 75;
  open_file_cache max=8000 inactive=300s;
  log_format times '$msec $server_addr $status $request_uri';
  access_log {folder}/access.log times;
  client_body_temp_path {folder}/tmp; proxy_temp_path {folder}/tmp; fastcgi_temp_path {folder}/tmp;
  uwsgi_temp_path {folder}/tmp; scgi_temp_path {folder}/tmp;
  {filter}
  server {{ {listen} root {root}; index index.html; }}
}}
"""


class Site(NamedTuple):
    """A site that is being served."""

    name: str
    starts: list[str]
    log: Path
    """One line a response: its time (Unix epoch), the host's address, status, path."""
    pid: int
    server: str
    """Name and version."""


@contextlib.contextmanager
def serve(name: str, folder: Path, *, pages: int) -> Iterator[Site]:
    """Serve one of :data:`NAMES` while the context is open.

    Args:
        name: which.
        folder: for what nginx writes, and for generated pages.
        pages: how many will be asked for; as many are generated, and some more.
    """
    match name:
        case "docs":
            yield from _serve(name, folder, RUST_DOC, ["127.2.0.1"], "/std/index.html")
        case "small":
            root = folder / "pages"
            generate(root, pages + pages // 4 + 50)
            yield from _serve(name, folder, root, ["127.2.0.3"], "/")
        case "endless":
            root = folder / "pages"
            generate(root, 2000, unique=2)
            yield from _serve(name, folder, root, ["127.2.0.4"], "/")
        case "eight":
            hosts = [f"127.2.1.{number}" for number in range(1, 9)]
            yield from _serve(name, folder, PYTHON_DOC, hosts, "/index.html")
        case "wide":
            root = folder / "pages"
            generate(root, 500)
            hosts = [f"127.2.{2 + number // 200}.{1 + number % 200}" for number in range(300)]
            yield from _serve(name, folder, root, hosts, "/")
        case _:
            raise ValueError(name)


def generate(root: Path, count: int, *, unique: int = 0) -> None:
    """Write ``count`` pages of 3 to 10 KB: the links every page has, and links to anywhere.

    ``unique`` of the links are new in every answer of the server.
    """
    chance = random.Random(7)
    words = [
        "".join(chance.choices("abcdefghijklmnop", k=chance.randint(2, 9))) for _ in range(900)
    ]
    names = ["index.html", *(f"part{n % 40}/page{n}.html" for n in range(1, count))]
    menu = "".join(f'<li><a href="/{name}">{name}</a></li>\n' for name in names[:12])
    for number, name in enumerate(names):
        targets = [names[(number * 3 + step) % count] for step in (1, 2, 3)]
        targets += chance.choices(names, k=25 - unique)
        targets += [f"{one}?{_UNIQUE}" for one in chance.choices(names, k=unique)]
        links = "".join(
            f'<p><a class="ref" href="{"/" if name == "index.html" else "../"}{target}">'
            f"{' '.join(chance.choices(words, k=2))}</a> {' '.join(chance.choices(words, k=8))}</p>"
            for target in targets
        )
        text = " ".join(chance.choices(words, k=chance.randint(0, 1000)))
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"<!DOCTYPE html><html><head><meta charset=utf-8><title>{name}</title></head><body>"
            f"<ul>{menu}</ul>{links}<div>{text}</div></body></html>"
        )


def _serve(name: str, folder: Path, root: Path, hosts: Sequence[str], path: str) -> Iterator[Site]:
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        sys.exit("nginx was not found; install it (Debian: apt-get install nginx)")
    if not root.is_dir():
        sys.exit(f"{root} was not found; install rust-doc and python3.11-doc (Debian)")
    with socket.socket() as probe:
        probe.bind((hosts[0], 0))
        port = int(probe.getsockname()[1])
    (folder / "tmp").mkdir(parents=True)
    config = folder / "nginx.conf"
    unique = f"sub_filter {_UNIQUE} $request_id; sub_filter_once off;" if name == "endless" else ""
    listen = " ".join(f"listen {host}:{port};" for host in hosts)
    user = "user root;" if Path("/proc/self").stat().st_uid == 0 else ""
    config.write_text(
        _CONFIG.format(folder=folder, listen=listen, root=root, user=user, filter=unique)
    )
    process = subprocess.Popen([nginx, "-c", config, "-e", folder / "error.log"])
    try:
        _wait_until_answering(hosts[-1], port, process)
        said = subprocess.run([nginx, "-v"], capture_output=True, text=True, check=True).stderr
        version = re.sub(r".*nginx/(\S+).*", r"nginx \1", said.strip())
        starts = [f"http://{host}:{port}{path}" for host in hosts]
        yield Site(name, starts, folder / "access.log", process.pid, version)
    finally:
        process.terminate()
        process.wait(timeout=10)


def _wait_until_answering(host: str, port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit("nginx ended at once; what it said is above")
        with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
            return
        time.sleep(0.02)
    sys.exit("nginx did not answer within 10 s")
