"""A job: its immutable spec and its state.

The field names of :class:`JobSpec` are those of spec files, and with dashes of the command line.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from common.model.errors import UsageError

SPEC_VERSION = 1
"""Version of data layout, canonical form and hash a job is pinned to; scripts refuse others."""

FOLLOW_TAGS = ("a", "area", "iframe", "frame", "meta-refresh")
MORE_TAGS = ("link", "canonical")
TRAP_NAMES = ("path", "query", "calendar")
"""Rules of ``common.web.traps``."""
CLEAN_NAMES = ("tracking", "session", "order")
"""Steps of ``common.web.cleaning``."""
BUDGETS = ("max_pages", "max_pages_per_host")
"""Rules by which URLs are dropped where no page is left of the budget so called."""
HIGHEST_NUMBER = 2**53 - 1
"""What every reader of the stored JSON, Lua among them, still holds exactly."""
LONGEST_INTERVAL_S = 315_360_000
"""Ten years."""
INTERVAL_SPAN = 8
"""How far the interval of ``recrawl`` may move either way, where no bounds are given."""
DEFAULT_USER_AGENT = "crawlctl/0.1"
"""Names nobody to turn to: only who runs a crawl can be asked to stop it."""


def as_time(seconds: float) -> str:
    """Return seconds as users write them: ``90s``, ``15m``, ``6h``, ``1d``."""
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds / length:.12g}{unit}"
    return f"{seconds:.12g}s"


class JobState(StrEnum):
    """Where a job stands; the last four are final."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    DAMAGED = "damaged"

    @property
    def is_final(self) -> bool:
        """Tell whether nothing more will be fetched."""
        return self not in (JobState.PENDING, JobState.RUNNING, JobState.PAUSED)


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to crawl; never changes once submitted. Sizes in bytes, times in seconds."""

    scope: Literal["host", "domain", "prefix", "any"] = "host"
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    max_depth: int | None = None
    max_pages: int | None = None
    max_pages_per_host: int | None = None
    follow: tuple[str, ...] = FOLLOW_TAGS
    delay: float = 1.0
    per_host: int = 1
    per_ip: int | None = None
    per_domain: int | None = None
    user_agent: str = DEFAULT_USER_AGENT
    header: tuple[str, ...] = ()
    cookie: tuple[str, ...] = ()
    proxy: str | None = None
    robots: Literal["obey", "ignore"] = "obey"
    sitemaps: bool = False
    page_robots: Literal["record", "obey"] = "record"
    plugin: tuple[str, ...] = ()
    traps: tuple[str, ...] = ("path", "query")
    clean: tuple[str, ...] = ()
    simhash: bool = False
    min_rate: int = 50
    shards: int = 64
    shard_by: Literal["host", "url"] = "host"
    timeout: float = 30.0
    connect_timeout: float = 10.0
    max_body: int = 16_000_000
    accept: tuple[str, ...] = ()
    store: Literal["none", "warc"] = "none"
    retries: int = 3
    recrawl: float | None = None
    recrawl_min: float | None = None
    recrawl_max: float | None = None
    priority: int = 0
    seen: Literal["exact", "bloom"] = "exact"
    seen_rate: float = 1e-6
    allow_private: bool = False

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            UsageError: naming the option and what it takes.
        """
        self._check_range("max_depth", self.max_depth, low=0, high=HIGHEST_NUMBER)
        self._check_range("max_pages", self.max_pages, low=1, high=HIGHEST_NUMBER)
        self._check_range("max_pages_per_host", self.max_pages_per_host, low=1, high=HIGHEST_NUMBER)
        self._check_range("delay", self.delay, low=0, high=86_400)
        self._check_range("per_host", self.per_host, low=1, high=1024)
        self._check_range("per_ip", self.per_ip, low=1, high=1024)
        self._check_range("per_domain", self.per_domain, low=1, high=1024)
        self._check_range("shards", self.shards, low=1, high=4096)
        self._check_range("timeout", self.timeout, low=0.1, high=3600)
        self._check_range("connect_timeout", self.connect_timeout, low=0.1, high=3600)
        self._check_range("max_body", self.max_body, low=1, high=HIGHEST_NUMBER)
        self._check_range("priority", self.priority, low=-HIGHEST_NUMBER, high=HIGHEST_NUMBER)
        self._check_range("min_rate", self.min_rate, low=0, high=HIGHEST_NUMBER)
        self._check_range("retries", self.retries, low=0, high=100)
        self._check_range("seen_rate", self.seen_rate, low=1e-9, high=0.01)
        self._check_recrawl()
        self._check_names("follow", (*FOLLOW_TAGS, *MORE_TAGS))
        self._check_names("traps", (*TRAP_NAMES, "none"))
        self._check_names("clean", CLEAN_NAMES)
        if self.per_ip is not None and self.proxy is not None:
            raise UsageError(
                "--per-ip: with --proxy it is the proxy that connects, to addresses nobody here "
                "knows; leave one of the two out (--per-domain works with both)"
            )

    def _check_recrawl(self) -> None:
        every = self.recrawl
        if every is None:
            for field, example in (("recrawl_min", "1h"), ("recrawl_max", "1d")):
                if getattr(self, field) is not None:
                    option = "--" + field.replace("_", "-")
                    raise UsageError(
                        f"{option}: it bounds the interval of --recrawl, which is not given; give "
                        f"both, as in --recrawl 6h {option} {example}"
                    )
            return
        self._check_time("recrawl", every, low=1, high=LONGEST_INTERVAL_S, example=21_600)
        least, most = self.recrawl_min, self.recrawl_max
        self._check_time("recrawl_min", least, low=1, high=every, example=every)
        self._check_time("recrawl_max", most, low=every, high=LONGEST_INTERVAL_S, example=every)

    @property
    def recrawl_bounds(self) -> tuple[float, float]:
        """Seconds from one visit of a page to the next: at least, at most."""
        every = self.recrawl or 0.0
        least, most = every / INTERVAL_SPAN, every * INTERVAL_SPAN
        return (
            least if self.recrawl_min is None else self.recrawl_min,
            most if self.recrawl_max is None else self.recrawl_max,
        )

    def _check_names(self, field: str, known: tuple[str, ...]) -> None:
        unknown = [name for name in getattr(self, field) if name not in known]
        if unknown:
            what = "tag" if field == "follow" else "name"
            choices = ", ".join(known)
            raise UsageError(f"--{field}: unknown {what} {unknown[0]!r}; choose from {choices}")

    def _check_range(self, field: str, value: float | None, *, low: float, high: float) -> None:
        if value is None or low <= value <= high:
            return
        option = "--" + field.replace("_", "-")
        raise UsageError(f"{option}: {value} is out of range; give a number from {low} to {high}")

    def _check_time(
        self, field: str, value: float | None, *, low: float, high: float, example: float
    ) -> None:
        if value is None or low <= value <= high:
            return
        option = "--" + field.replace("_", "-")
        limits = f"from {as_time(low)} to {as_time(high)}"
        bound = "" if field == "recrawl" else f" (--recrawl is {as_time(self.recrawl or 0)})"
        raise UsageError(
            f"{option}: {as_time(value)} is out of range; give a time {limits}{bound}, as in "
            f"{as_time(example)}"
        )


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The stored record of a job (etcd, ``jobs/<id>``). Times are RFC 3339 UTC."""

    id: str
    spec: JobSpec
    state: JobState
    seeds: int = 0
    """Number of seed lines staged; -1 while the client is still staging them."""
    seeds_sha256: str | None = None
    """Digest of the seeds it was made with: the same id with others is another job."""
    added: int = 0
    """Seed lines added to it later."""
    chunks: int = 0
    """Numbers taken for staged chunks so far; none twice, as a chunk is deleted by its number."""
    keep_open: bool = False
    """Whether it goes on running when nothing is left; ``job close`` ends that."""
    created_at: str
    started_at: str | None = None
    finished_at: str | None = None
    reason: str | None = None
    """Why it failed or is damaged; one sentence."""
    version: int = SPEC_VERSION

    @property
    def is_kept_open(self) -> bool:
        """Tell whether it is there until somebody ends it."""
        return self.keep_open and not self.state.is_final

    @property
    def work(self) -> JobSpec:
        """What is asked of workers: what is left of a cancelled job any of them can drop."""
        if self.state is not JobState.CANCELLED:
            return self.spec
        return msgspec.structs.replace(
            self.spec, plugin=(), store="none", header=(), cookie=(), proxy=None
        )
