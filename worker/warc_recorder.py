"""Turns what the fetcher saw into what the archive keeps: without secrets, cuts explained."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from aiohttp import HttpVersion11

from common.model.records import ErrorInfo, WarcRef
from common.runtime.secrets import HIDDEN
from common.web.retry import ErrorCode
from worker.fetch_urls import target_of
from worker.fetched import Fetched
from worker.warc import Archive
from worker.warc_record import Cut, Exchange, date_of
from worker.web_session import Answer

_HIDDEN: Final = frozenset(("authorization", "proxy-authorization"))
"""Request fields whose values are never kept."""


class Recorder:
    """Records the responses of one job."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def record(
        self,
        answer: Answer,
        fetched: Fetched,
        *,
        own: Iterable[str],
        cut: bool,
        refers_to: str | None = None,
    ) -> tuple[WarcRef | None, str]:
        """Keep a response; return where it is, and its ``WARC-Date``.

        Args:
            answer: the response.
            fetched: what came of it.
            own: names of the headers sent to this host alone, cookies among them: their values may
                be secrets, wherever they came from.
            cut: no more than the first part of the body was wanted.
            refers_to: the ``WARC-Date`` of the response that a 304 would refer to.
        """
        hidden = _HIDDEN.union(map(str.lower, own))
        ago = timedelta(seconds=time.monotonic() - fetched.started_at)
        version = answer.version or HttpVersion11
        status = f"HTTP/{version.major}.{version.minor} {answer.status} {answer.reason or ''}"
        exchange = Exchange(
            url=fetched.final_url,
            began=datetime.now(UTC) - ago,
            ip=fetched.ip,
            request_line=f"GET {target_of(fetched.final_url)} HTTP/1.1",
            request_headers=[
                (name, HIDDEN if name.lower() in hidden else value)
                for name, value in answer.request_info.headers.items()
            ],
            status_line=status,
            response_headers=answer.raw_headers,
            body=fetched.body,
            cut=_why_cut(fetched, on_request=cut),
            refers_to=refers_to if answer.status == 304 else None,
        )
        return await self._archive.add(exchange), date_of(exchange.began)


def _why_cut(fetched: Fetched, *, on_request: bool) -> Cut | None:
    """Return why the body is not all of it, in the words of WARC."""
    match fetched.error:
        case None if not fetched.truncated:
            return None
        case None:
            return "length" if on_request else "disconnect"
        case ErrorInfo(code=ErrorCode.TOO_LARGE):
            return "length"
        case ErrorInfo(code=ErrorCode.READ_TIMEOUT | ErrorCode.TOTAL_TIMEOUT):
            return "time"
        case ErrorInfo(code=ErrorCode.TRUNCATED_BODY | ErrorCode.CONNECTION_RESET):
            return "disconnect"
        case _:
            return "unspecified"
