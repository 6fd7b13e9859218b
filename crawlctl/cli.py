"""The tree of commands; each is imported when it is called, so that ``--help`` answers at once."""

from __future__ import annotations

from typing import Final

from crawlctl.framework import Group, Lazy

_COMMANDS: Final = "crawlctl.commands"

cli = Group(
    name="crawlctl",
    help="Crawl the web with many machines, without losing a page or hurrying a host.",
    examples=[
        "crawlctl crawl https://example.org/ -o out",
        "crawlctl up --data data && crawlctl submit https://example.org/ --wait",
    ],
    lazy={
        "crawl": Lazy(f"{_COMMANDS}.crawl:crawl", "crawl from start to finish on this machine"),
        "up": Lazy(f"{_COMMANDS}.up:up", "start servers, a master and workers in the background"),
        "down": Lazy(f"{_COMMANDS}.up:down", "stop what 'up' started"),
        "submit": Lazy(f"{_COMMANDS}.submit:submit", "create a job; prints its id"),
        "jobs": Lazy(f"{_COMMANDS}.job:jobs", "list the jobs"),
        "job": Lazy(f"{_COMMANDS}.job:job", "look at one job; add to it, pause, cancel, delete it"),
        "export": Lazy(f"{_COMMANDS}.export:export", "write a job's results"),
        "why": Lazy(f"{_COMMANDS}.why:why", "say what happened to a URL, and why"),
        "dead": Lazy(f"{_COMMANDS}.dead:dead", "list the URLs a job gave up; try them again"),
        "nodes": Lazy(f"{_COMMANDS}.nodes:nodes", "list masters and workers; drain one"),
        "locks": Lazy(f"{_COMMANDS}.locks:locks", "list who owns what; show or break one lock"),
        "doctor": Lazy(f"{_COMMANDS}.doctor:doctor", "check services and invariants"),
        "start-master": Lazy(f"{_COMMANDS}.start:start_master", "run a master in the foreground"),
        "start-worker": Lazy(f"{_COMMANDS}.start:start_worker", "run a worker in the foreground"),
        "schema": Lazy(f"{_COMMANDS}.schema:schema", "JSON Schema of job specs and results"),
        "demo-site": Lazy(f"{_COMMANDS}.demo_site:demo_site", "serve a small site to try it on"),
        "completion": Lazy(f"{_COMMANDS}.completion:completion", "print shell completion code"),
    },
)
