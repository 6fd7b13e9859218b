"""URLs on the wire: byte for byte as they are canonical, and the targets that answers name."""

from __future__ import annotations

from typing import Final

import can_ada
from yarl import URL

from common.web.url import header_reference
from worker.fetch_errors import InvalidLocationFault
from worker.web_session import Answer

_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))


def target_of(url: str) -> str:
    """Return path and query as they are sent."""
    return url[url.index("/", 8) :]


def exact_url(url: str) -> URL:
    """Return a canonical URL as the HTTP library sends it: as it is."""
    exact = URL(url, encoded=True)
    if url.endswith("?"):  # an empty query would be lost: carry its mark in the path
        return URL.build(
            scheme=exact.scheme, authority=exact.raw_authority, path=target_of(url), encoded=True
        )
    return exact


def location_of(answer: Answer, url: str) -> str | None:
    """Return the absolute target of a redirect.

    Raises:
        InvalidLocationFault: the server names a target that is no URL.
    """
    if answer.status not in _REDIRECTS:
        return None
    field = answer.headers.get("Location", "").strip()
    if not field:
        return None
    reference = header_reference(field.encode("utf-8", "surrogateescape"))
    try:
        target: str = (can_ada.parse(url) + reference).href
    except ValueError as error:
        raise InvalidLocationFault("the redirect's Location is not a valid URL") from error
    return target
