"""The result record of a URL: what its item says, what was received, and what was read in that."""

from __future__ import annotations

import hashlib

from common.frontier.items import Item
from common.model.ids import NodeId, Token
from common.model.records import Outcome, ResultRecord
from common.runtime.clock import utc_now
from worker.fetched import Fetched


def record_of(
    item: Item,
    outcome: Outcome,
    fetched: Fetched | None,
    facts: dict[str, object],
    *,
    worker: NodeId,
    token: Token,
) -> ResultRecord:
    """Return the record of a URL that has ended now.

    Args:
        item: the URL.
        outcome: how it ended.
        fetched: the answer, where there is one.
        facts: further fields, which come before those of the answer where they are an error.
        worker: this process.
        token: under which the task is owned.
    """
    if fetched is not None:
        facts.setdefault("error", fetched.error)
        facts |= {
            "status": fetched.status,
            "elapsed_ms": fetched.elapsed_ms,
            "ip": fetched.ip,
            "content_type": fetched.content_type,
            "bytes": len(fetched.body),
            "sha256": hashlib.sha256(fetched.body).hexdigest() if fetched.body else None,
            "truncated": fetched.truncated,
            "warc": fetched.warc,
        }
    facts.setdefault("status", None)
    return ResultRecord(
        url=item.url,
        final_url=fetched.final_url if fetched else item.url,
        outcome=outcome,
        depth=item.depth,
        referrer=item.referrer,
        fetched_at=utc_now(),
        lastmod=item.lastmod,
        priority=item.priority,
        attempt=item.attempt,
        worker=worker,
        token=token,
        **facts,  # type: ignore[arg-type]
    )
