"""The summary of a crawl: ``summary.json`` for programs, a few lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from common.embedded.folder import write_atomically
from common.model import counters
from common.model.job import JobState
from crawlctl.jobview import JobLook
from crawlctl.show import duration, print_line, quantity
from crawlctl.sink import Checkpoint

FILE = "summary.json"
_SHOWN_ERRORS = 5


class CrawlOutcome(StrEnum):
    """How a run of ``crawl`` ended."""

    DONE = "done"
    NO_SEED_ANSWERED = "no_seed_answered"
    INTERRUPTED = "interrupted"
    """The same command goes on with it."""
    FAILED = "failed"


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What ``summary.json`` holds; fields may be added, none renamed."""

    outcome: CrawlOutcome
    state: str
    """Of the job."""
    reason: str | None
    seeds: int
    bad_seed_lines: int
    counters: dict[str, int]
    filtered_by_rule: dict[str, int] = {}
    """Rule -> links it refused; they add up to ``filtered``."""
    records: int
    """Lines of ``results.jsonl``."""
    errors: dict[str, int]
    """Error code -> records that failed or died of it."""
    statuses: dict[int, int] = {}
    """HTTP status -> records with it."""
    started_at: str | None
    finished_at: str | None
    elapsed_seconds: float
    """Time its workers were at work, over all its starts."""
    pages_per_second: float


def summarize(look: JobLook, written: Checkpoint, *, bad_seed_lines: int) -> Summary:
    """Return the summary of a crawl as it stands."""
    state = look.job.state
    if not state.is_final:
        outcome = CrawlOutcome.INTERRUPTED
    elif state is not JobState.FINISHED:
        outcome = CrawlOutcome.FAILED
    elif written.tally.answered_seeds == 0:
        outcome = CrawlOutcome.NO_SEED_ANSWERED
    else:
        outcome = CrawlOutcome.DONE
    rate = counters.answers(look.counters) / written.active_s if written.active_s > 0 else 0.0
    return Summary(
        outcome=outcome,
        state=state.value,
        reason=look.job.reason,
        seeds=look.job.seeds,
        bad_seed_lines=bad_seed_lines,
        counters=look.counters,
        filtered_by_rule=dict(look.filtered_by_rule or {}),
        records=written.tally.records,
        errors=dict(sorted(written.tally.errors.items(), key=lambda item: (-item[1], item[0]))),
        statuses=dict(sorted(written.tally.statuses.items())),
        started_at=look.job.started_at,
        finished_at=look.job.finished_at,
        elapsed_seconds=round(written.active_s, 3),
        pages_per_second=round(rate, 3),
    )


def no_seed_answered(causes: Iterable[str]) -> str:
    """Return the words for a crawl that reached nobody, with the error codes that were met."""
    return f"no seed answered ({', '.join(causes) or 'see the results'})"


def save(summary: Summary, folder: Path) -> None:
    """Write ``summary.json``."""
    text = msgspec.json.format(msgspec.json.encode(summary), indent=2)
    write_atomically(folder / FILE, text + b"\n", mode=0o644)


def load(folder: Path) -> Summary | None:
    """Return the summary of a finished crawl; None where the file is gone or not ours any more."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Summary)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None


def counted(found: Mapping[str, int]) -> str:
    """Return the words for what became of the URLs: pages first, then all else there is."""
    others = [
        f"{found[name]} {name.replace('_', ' ')}"
        for name in (
            "not_modified", "redirected", "denied", "failed", "dead", "dropped", "queued",
            "delayed", "in_flight",
        )
        if found[name]
    ]  # fmt: skip
    return ", ".join([quantity(found["fetched"], "page"), *others])


def show(summary: Summary, results: Path) -> None:
    """Write the summary for people."""
    # The job of a crawl that was interrupted runs on, but nothing works on it.
    is_interrupted = summary.outcome is CrawlOutcome.INTERRUPTED
    print_line(
        f"{summary.outcome if is_interrupted else summary.state}: {counted(summary.counters)} in "
        f"{duration(summary.elapsed_seconds)}, {summary.pages_per_second:.1f} pages/s"
    )
    if summary.statuses:
        text = ", ".join(f"{status}: {count}" for status, count in summary.statuses.items())
        print_line(f"statuses: {text}")
    if summary.errors:
        shown = list(summary.errors.items())
        text = ", ".join(f"{code} {count}" for code, count in shown[:_SHOWN_ERRORS])
        print_line(f"errors: {text}{', ...' if len(shown) > _SHOWN_ERRORS else ''}")
    print_line(f"results: {results}")
