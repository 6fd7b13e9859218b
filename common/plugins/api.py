"""What a plugin is and what its hooks are given: the public API (``crawlctl.plugins``).

Names and fields may be added here, none renamed or taken away. Everything a hook is given is
immutable, and made of plain Python values. What stands in it came from the web: it is hostile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from common.web import charset

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
"""What can be written as JSON."""
Headers: TypeAlias = Mapping[str, str] | None
"""Request headers by name; None for none."""
Links: TypeAlias = Iterable[str] | None
"""URLs, absolute or relative to the response's own; None for none."""
Facts: TypeAlias = Mapping[str, JSON] | None
"""What a record is to hold, by name; None or empty for nothing."""

HOOKS: Final = ("refuse", "prepare", "parse", "enrich")
"""The methods of which a plugin has at least one."""

RULE: Final = "plugin "
"""What the rules of plugins begin with where refused links are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """The job a plugin works for."""

    id: str
    plugin: str
    """The name under which the job uses the plugin."""
    user_agent: str
    worker: str
    """Id of the worker whose process this is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link that is about to go into the frontier."""

    url: str
    """Canonical."""
    depth: int
    """Links from a seed."""
    referrer: str
    """URL of the page or sitemap it stands on, or that redirects to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that is about to be sent to a host of the seeds."""

    url: str
    """Canonical."""
    depth: int
    attempt: int
    """1 for the first try."""
    is_sitemap: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What a host answered for a page."""

    url: str
    """Canonical URL of the page."""
    final_url: str
    """Last URL requested for it: what relative links are relative to."""
    status: int
    headers: tuple[tuple[str, str], ...]
    """As received, repeated fields included; bytes that are no UTF-8 are surrogates."""
    content_type: str | None
    body: bytes
    """Decoded (gzip and so on undone), at most ``--max-body`` bytes."""
    truncated: bool
    """The body ended before it was complete."""
    title: str | None
    """Of an HTML page, as in its record."""
    encoding: str | None
    """Of an HTML page: the character encoding, as named by WHATWG."""
    links: tuple[str, ...]
    """Canonical URLs found so far, distinct; for ``enrich`` those of ``parse`` among them."""
    depth: int
    referrer: str | None
    """The page it was first found on; None for a seed."""

    def header(self, name: str) -> str | None:
        """Return the first field of a name in any case; None where there is none."""
        wanted = name.lower()
        return next((value for key, value in self.headers if key.lower() == wanted), None)

    @property
    def text(self) -> str:
        """The body as text, bytes that are none of its encoding as U+FFFD; decoded at each use."""
        found = charset.sniff(self.body, self.content_type)
        return charset.without_mark(self.body).decode(found.codec, "replace")


class Plugin:
    """Base class of plugins: override one or more of the hooks; the others cost nothing.

    A worker process makes one object for each job that names the plugin, without arguments. Hooks
    run in its event loop, several pages at a time: what takes more than milliseconds must await.
    All but ``refuse`` may be ``async def``; they then have to end within 30 seconds, ``prepare``
    within 2.5, that of the job's other plugins included.

    An exception, or a value of another type, ends the page at hand as dead, with the error code
    ``plugin_failed``, and nothing else; 'crawlctl dead --retry' puts such pages back.
    """

    def opened(self, job: JobInfo) -> Awaitable[None] | None:
        """Open what is needed, before the first page; within 30 seconds.

        An exception here lets the worker refuse the job, and try again later.
        """

    def closed(self) -> Awaitable[None] | None:
        """Close it, when no part of the job is done here any more; within 5 seconds.

        Also called after ``opened`` failed; never when the process is killed.
        """

    def refuse(self, link: Link) -> str | None:  # noqa: ARG002 - hooks are given it
        """Return the name of the rule by which a link is not followed; None to let it pass.

        Asked last, of links that scope, depth and all rules of the job let pass, as often as they
        are found. Never asked of seeds. Refused links are counted under the name of the rule: give
        a few fixed ones, without parts of the link.
        """
        return None

    def prepare(self, request: Request) -> Headers | Awaitable[Headers]:  # noqa: ARG002
        """Return headers for a request, in place of the job's own of the same name.

        Asked for pages and sitemaps, not for robots.txt, and of hosts of the seeds only, as for
        ``--header``. Headers that frame a request, such as Host or Content-Length, are refused.
        """
        return None

    def parse(self, response: Response) -> Links | Awaitable[Links]:  # noqa: ARG002
        """Return further links of a page, whatever its type; asked where the status is 2xx.

        All that holds for other links holds for these. What is no http(s) URL is left out.
        """
        return None

    def enrich(self, response: Response) -> Facts | Awaitable[Facts]:  # noqa: ARG002
        """Return what the page's record is to hold under ``extra`` and the plugin's name.

        Asked of every page that ends as fetched, of any status; at most 64 KiB as JSON.
        """
        return None


def hooks_of(plugin: type[Plugin]) -> frozenset[str]:
    """Return the hooks a plugin overrides."""
    return frozenset(name for name in HOOKS if getattr(plugin, name) is not getattr(Plugin, name))
