"""What a fetched page says: its links, what it asks of crawlers, and the facts of its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from common.frontier.items import Item
from common.plugins.api import Response
from common.web import directives
from common.web.html import Page, is_html
from worker.fetched import Fetched
from worker.steps import in_steps

if TYPE_CHECKING:
    from worker.job import JobContext

_SNIFF_BYTES: Final = 512


class Reading(NamedTuple):
    """What was read."""

    links: Sequence[str]
    """Canonical, distinct: those that may be followed."""
    refused: Mapping[str, int]
    """Links the page does not let us follow, by rule."""
    facts: dict[str, object]
    """Fields of its record."""


async def read(context: JobContext, item: Item, fetched: Fetched) -> Reading:
    """Read a page.

    Raises:
        PluginFailed: a plugin of the job did.
    """
    parsed: Page | None = None
    said = directives.of_header(fields(fetched, "X-Robots-Tag"), agent=context.agent)
    is_page = fetched.status is not None and 200 <= fetched.status < 300
    if is_page and is_html(fetched.content_type, fetched.body[:_SNIFF_BYTES]):
        with context.stages.parse.timed():
            parsed = await context.parser.parse(
                fetched.body, url=fetched.final_url, content_type=fetched.content_type
            )
        said |= parsed.directives
    links: Sequence[str] = parsed.links if parsed else []
    facts: dict[str, object] = {}
    if parsed is not None:
        facts = {
            "title": parsed.title,
            "encoding": parsed.encoding,
            "canonical": parsed.canonical,
            "simhash": parsed.simhash,
        }
    if context.plugins is not None:
        with context.stages.plugins.timed():
            links, facts["extra"] = await context.plugins.read(
                _response(item, fetched, parsed), is_page=is_page
            )
    facts |= {"outlinks": len(links), "robots": tuple(sorted(said))}
    refused: dict[str, int] = {}
    if context.spec.page_robots == "obey":
        links, refused = await _obeyed(links, parsed.nofollow if parsed else frozenset(), said)
        if "noindex" in said:
            facts["title"] = None
    return Reading(links, refused, facts)


def _response(item: Item, fetched: Fetched, parsed: Page | None) -> Response:
    assert fetched.status is not None
    return Response(
        url=item.url,
        final_url=fetched.final_url,
        status=fetched.status,
        headers=tuple((fetched.headers or {}).items()),
        content_type=fetched.content_type,
        body=fetched.body,
        truncated=fetched.truncated,
        title=parsed.title if parsed else None,
        encoding=parsed.encoding if parsed else None,
        links=tuple(parsed.links) if parsed else (),
        depth=item.depth,
        referrer=item.referrer,
    )


def fields(fetched: Fetched, name: str) -> list[str]:
    """Return the values of a header field, however often it was sent."""
    if fetched.headers is None or name not in fetched.headers:
        return []
    return [value for key, value in fetched.headers.items() if key.lower() == name.lower()]


async def _obeyed(
    links: Sequence[str], nofollow: frozenset[str], said: frozenset[str]
) -> tuple[Sequence[str], dict[str, int]]:
    """Return the links that the page lets us follow, and how many it does not, by rule."""
    if "nofollow" in said:
        return [], {"nofollow: page": len(links)} if links else {}
    if not nofollow:
        return links, {}
    kept: list[str] = []
    async for some in in_steps(links):
        kept += [link for link in some if link not in nofollow]
    refused = len(links) - len(kept)
    return kept, {"nofollow: link": refused} if refused else {}
