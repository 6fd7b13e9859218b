"""A real site: Debian's python3.11-doc, served by nginx on several loopback addresses.

The access log is the server's own word on who was asked what and when. ``walk`` is the yardstick: a
plain breadth-first walk that shares no code with crawlctl.
"""

from __future__ import annotations

import contextlib
import html.parser
import http.client
import itertools
import shutil
import socket
import subprocess
import time
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

DOCS = Path("/usr/share/doc/python3.11/html")
HOSTS = tuple(f"127.3.0.{number}" for number in range(1, 9))
CLOCK_S = 0.0011
"""The log's resolution: a start and an end are each cut to a millisecond."""

_CONFIG = """
worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log; daemon off;
events {{ worker_connections 1024; }}
http {{
  include /etc/nginx/mime.types; sendfile on; keepalive_requests 1000000; keepalive_timeout 75;
  log_format times '$msec $request_time $server_addr $status $request_method $request_uri';
  access_log {folder}/access.log times;
  client_body_temp_path {folder}/tmp; proxy_temp_path {folder}/tmp; fastcgi_temp_path {folder}/tmp;
  uwsgi_temp_path {folder}/tmp; scgi_temp_path {folder}/tmp;
  server {{ {listen} root {root}; index index.html; }}
}}
"""


class Request(NamedTuple):
    """One line of the access log; times in seconds, resolution one millisecond."""

    start: float
    end: float
    host: str
    status: int
    path: str


class DocSite:
    """A running nginx and what it has logged."""

    def __init__(self, folder: Path, hosts: Sequence[str], port: int) -> None:
        self.folder = folder
        self.hosts = hosts
        self.port = port

    def url(self, host: str, path: str = "/index.html") -> str:
        return f"http://{host}:{self.port}{path}"

    def requests(self) -> list[Request]:
        found = []
        for line in (self.folder / "access.log").read_text().splitlines():
            msec, took, host, status, _method, path = line.split(" ", 5)
            end = float(msec)
            found.append(Request(end - float(took), end, host, int(status), path))
        return found

    def fetched_twice(self) -> list[tuple[str, str]]:
        """Return (host, path) of what was asked more than once, robots.txt aside."""
        counts = Counter((one.host, one.path) for one in self.requests())
        return [key for key, count in counts.items() if count > 1 and key[1] != "/robots.txt"]

    def min_gap_s(self) -> float:
        """Return the shortest time from a response's end to the next request's start on a host."""
        by_host = defaultdict(list)
        for one in self.requests():
            by_host[one.host].append(one)
        gaps = []
        for requests in by_host.values():
            requests.sort()
            pairs = itertools.pairwise(requests)
            gaps += [later.start - earlier.end for earlier, later in pairs]
        return min(gaps)


@contextlib.contextmanager
def serve(folder: Path, *, hosts: Sequence[str], root: Path = DOCS) -> Iterator[DocSite]:
    """Serve ``root`` on every host's loopback address, on one port that was free."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        pytest.skip("NO NGINX: install nginx to run this test (apt-get install nginx)")
    if not root.is_dir():
        pytest.skip(f"NO SITE: no pages in {root} (Debian: apt-get install python3.11-doc)")
    with socket.socket() as probe:
        probe.bind((hosts[0], 0))
        port = int(probe.getsockname()[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tmp").mkdir(exist_ok=True)
    listen = " ".join(f"listen {host}:{port};" for host in hosts)
    config = folder / "nginx.conf"
    config.write_text(_CONFIG.format(folder=folder, listen=listen, root=root))
    process = subprocess.Popen([nginx, "-c", config, "-e", folder / "error.log"])
    try:
        _wait_until_answering(hosts[-1], port, process)
        (folder / "access.log").write_text("")
        yield DocSite(folder, hosts, port)
    finally:
        process.terminate()
        process.wait(timeout=10)


def _wait_until_answering(host: str, port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        assert process.poll() is None, "nginx ended at once; see its error.log"
        with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
            return
        time.sleep(0.02)
    raise AssertionError("nginx did not answer within 10 s")


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.base: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "base" and self.base is None:
            self.base = values.get("href")
        wanted = {"a": "href", "area": "href", "iframe": "src", "frame": "src"}
        if tag in wanted and (target := values.get(wanted[tag])):
            self.found.append(target.strip())
        if tag == "meta" and (values.get("http-equiv") or "").lower() == "refresh":
            _, equals, target = (values.get("content") or "").partition("=")
            if equals:
                self.found.append(target.strip(" '\""))


class Walked(NamedTuple):
    """What the walk asked: path -> status."""

    status: dict[str, int]

    @property
    def redirects(self) -> set[str]:
        return {path for path, status in self.status.items() if 300 <= status < 400}


def walk(site: DocSite, host: str, start: str = "/index.html") -> Walked:
    """Walk one host breadth first, following a, area, iframe, frame and meta refresh."""
    connection = http.client.HTTPConnection(host, site.port)
    prefix = f"http://{host}:{site.port}"
    status: dict[str, int] = {}
    queue = [start]
    known = {start}
    for path in queue:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        status[path] = response.status
        targets = []
        if 300 <= response.status < 400:
            targets = [response.headers["Location"]]
        elif response.status == 200 and response.headers.get_content_type() == "text/html":
            links = _Links()
            links.feed(body.decode("utf-8", "replace"))
            base = urllib.parse.urljoin(prefix + path, links.base or "")
            targets = [urllib.parse.urljoin(base, target) for target in links.found]
        for raw in targets:
            target = urllib.parse.urldefrag(raw).url
            if target.startswith(prefix) and target.removeprefix(prefix)[:1] in ("", "/"):
                next_path = target.removeprefix(prefix) or "/"
                if next_path not in known:
                    known.add(next_path)
                    queue.append(next_path)
    connection.close()
    return Walked(status)
