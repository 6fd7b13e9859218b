"""What the work on a claim comes to: made by the page worker, written by the committer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from common.frontier.items import Item
from common.frontier.ledger import Spent
from common.frontier.owner import Finished, Release, Retry, SitemapRead
from common.model.ids import HostKey
from common.model.records import Outcome


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is to become of a claim, and what must be offered before."""

    claim: int
    ended_at: float | None
    """Monotonic; when the last response for it ended. None = no request was sent."""
    settle: Callable[[int], Finished | Retry | Release | SitemapRead]
    """Given the ms since ``ended_at`` (-1: no request), what to write."""
    offers: list[Item]
    filtered: Mapping[str, int] = field(default_factory=dict)
    """Links refused, by rule."""
    outcome: Outcome | None = None
    """None for what is not finished, and for a sitemap."""
    elapsed_ms: int = 0
    frees: HostKey | None = None
    """The host whose slot is free since ``ended_at``; None: only when this is settled."""
    spent: Spent | None = None
    """What its host's ledger must be told before."""
