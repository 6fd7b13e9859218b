"""What happened to a URL and why: one answer out of the frontier, the records and the rules.

The rules are applied again as a worker would apply them to a link, but for those of plugins. What
depends on the page a link stood on (its depth) is known only for URLs that were admitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

import msgspec

from common.model.errors import UsageError
from common.model.ids import JobId, Task
from common.model.job import Job, JobState
from common.model.records import Outcome, ResultRecord
from common.plugins.api import RULE
from common.runtime.clock import from_unix_ms, utc_now
from common.web.scope import UrlRules, domain_of
from common.web.traps import Traps
from common.web.url import host_key, parse_seed
from crawlctl.jobview import why_waiting
from crawlctl.show import quantity

if TYPE_CHECKING:
    from common.frontier.items import Item
    from common.frontier.lookup import Delayed, InFlight, Lookup, Queued
    from crawlctl.connect import Services

_BUDGETS = {
    "max_pages": "the job had fetched its --max-pages",
    "max_pages_per_host": "its host had used up its --max-pages-per-host",
}


class Explanation(NamedTuple):
    """The answer, in the shape of the contract."""

    url: str
    """As it was asked for."""
    canonical: str | None
    """None where it cannot be crawled at all."""
    state: str
    """One of unknown, filtered, staged, seen,
     queued, delayed, in_flight, finished, denied, over_budget, sitemap."""
    since: str | None
    """RFC 3339, where it is known."""
    reason: str
    """One sentence or rule."""
    detail: dict[str, Any]


class _Said(NamedTuple):
    state: str
    reason: str
    detail: dict[str, Any]
    since: str | None = None


async def explain(services: Services, job: Job, url: str) -> Explanation:
    """Return what happened to a URL in a job.

    Args:
        services: where the job is.
        job: which.
        url: as a user writes it; without scheme, http is meant.
    """
    try:
        canonical = parse_seed(url)
    except UsageError as error:
        return Explanation(url, None, "filtered", None, str(error), {})
    lookup = services.lookup(job)
    said = await _look(services, lookup, job, canonical)
    where = {"host": host_key(canonical), "shard": lookup.shard(canonical)}
    return Explanation(url, canonical, said.state, said.since, said.reason, where | said.detail)


async def _look(services: Services, lookup: Lookup, job: Job, url: str) -> _Said:
    from common.frontier.lookup import Delayed, Ended, InFlight, Queued

    if not await lookup.is_seen(url):
        return await _as_sitemap(lookup, url) or await _unseen(services, lookup, job, url)
    match await lookup.find(url):
        case None:
            said = _Said("seen", "only the seen-set knows it: " + _why_only_seen(job), {})
            return await _visited_again(lookup, job, url, said)
        case Queued() as queued:
            return await _queued(services, lookup, job, queued)
        case Delayed() as delayed:
            return _delayed(job, delayed)
        case InFlight() as flying:
            return await _in_flight(services, lookup, job, flying)
        case Ended(record=record):
            return await _visited_again(lookup, job, url, _ended(record))


async def _visited_again(lookup: Lookup, job: Job, url: str, said: _Said) -> _Said:
    """Return what is said of a URL that has ended, and when it is visited next."""
    if job.spec.recrawl is None:
        return said
    upcoming = await lookup.next_visit(url)
    if upcoming is None:
        reason = f"{said.reason}; it is not visited again"
        return said._replace(reason=reason, detail={**said.detail, "recrawl": None})
    known, at = upcoming.known, from_unix_ms(upcoming.at_ms) if job.is_kept_open else None
    when = f"is due for its next visit at {at}"
    if at is None:
        when = "is not visited again: the job was closed or is over"
    elif job.state is JobState.PAUSED:
        when += ", if the job is resumed by then"
    recrawl = {
        "next_visit_at": at,
        "interval_seconds": known.interval_s,
        "visits": known.visits,
        "gone": known.gone,
        "etag": known.etag,
        "last_modified": known.modified,
    }
    return said._replace(
        reason=f"{said.reason}; it {when}", detail={**said.detail, "recrawl": recrawl}
    )


async def _as_sitemap(lookup: Lookup, url: str) -> _Said | None:
    """Return what became of a URL that is a sitemap and no page, or None."""
    read = await lookup.sitemap(url)
    if read is None:
        return None
    if read.get("error"):
        reason = f"not read as a sitemap: {read['error']['code']}: {read['error']['message']}"
    elif read.get("rule"):
        reason = f"not read as a sitemap: {read['rule']}"
    elif read.get("kind") is None:
        reason = f"no sitemap is there: status {read.get('status')}"
    else:
        reason = f"read as a sitemap ({read['kind']}): it names "
        reason += f"{quantity(read['pages'], 'page')} and {quantity(read['sitemaps'], 'sitemap')}"
    return _Said("sitemap", reason, read, read["at"])


def _why_only_seen(job: Job) -> str:
    if job.spec.seen == "bloom":
        rate = f"at most {job.spec.seen_rate:g} of new URLs"
        return f"its record was consumed and trimmed, or the filter errs ({rate})"
    return "its record was consumed and trimmed, or it moved while it was looked for"


async def _unseen(services: Services, lookup: Lookup, job: Job, url: str) -> _Said:
    spec = job.spec
    if await lookup.is_staged(url):
        reason = "it is a seed that was not offered to the frontier yet"
        return _Said("staged", reason, {}, job.created_at)
    rule = Traps(name for name in spec.traps if name != "none").refusal(url)
    rule = rule or UrlRules(allow=spec.allow, deny=spec.deny).refusal(url)
    if rule is not None:
        return _Said("filtered", rule, {"rule": rule})
    if not await lookup.is_in_scope(url):
        reason = f"scope {spec.scope}: it is outside of what the seeds span"
        return _Said("filtered", reason, {"rule": f"scope: {spec.scope}"})
    if spec.max_depth == 0:
        return _Said("filtered", "max_depth 0: only seeds", {"rule": "max_depth: 0"})
    reason = "no page fetched so far links to it"
    if spec.max_depth is not None:
        links = quantity(spec.max_depth, "link")
        reason += f", or only pages {links} from a seed, where --max-depth ends"
    plugins = await _refusing(services, job)
    if plugins:
        names = " or ".join(plugins)
        reason += f", or plugin {names} refused it (asked by workers alone, who note no URL)"
    return _Said("unknown", reason, {"plugins": plugins} if plugins else {})


async def _refusing(services: Services, job: Job) -> list[str]:
    """Return the plugins that may have refused a link: those of the job that did refuse some."""
    if not job.spec.plugin:
        return []
    rules = await services.frontier(job).refused(RULE)
    return [name for name in job.spec.plugin if any(r.startswith(f"{RULE}{name}:") for r in rules)]


async def _queued(services: Services, lookup: Lookup, job: Job, queued: Queued) -> _Said:
    owner, token = await _owner(services, lookup, job, queued.item.url)
    ready = None if queued.ready_at_ms is None else from_unix_ms(queued.ready_at_ms)
    if job.state is not JobState.RUNNING:
        reason = f"the job is {job.state.value}"
    elif owner is None:
        reason = await why_waiting(services.coord, job) or "no worker owns its shard yet"
    elif queued.is_blocked:
        reason = f"its host is blocked; 'crawlctl job host {job.id} HOST --unblock' lets it go on"
    elif ready is None:
        reason = "a request to its host is under way"
    elif ready > utc_now():
        reason = f"the next request to its host may start at {ready}"
        if job.spec.per_domain is not None or job.spec.per_ip is not None:
            reason += ", if its domain and its address are not at their limit then"
    elif queued.before:
        reason = "it is not its turn yet"
    else:
        reason = "it is next"
    if queued.before:
        reason += f"; of its host, {quantity(queued.before, 'URL')} before it"
    detail = {
        "before": queued.before,
        "host_ready_at": ready,
        "owner": owner,
        "token": token,
        **await _domain(services, job, queued.item.url),
        **_of_item(queued),
    }
    return _Said("queued", reason, detail)


async def _domain(services: Services, job: Job, url: str) -> dict[str, Any]:
    """Return how busy a URL's domain is, where the job limits that."""
    from common.frontier.pace import domain_group, taken

    limit = job.spec.per_domain
    if limit is None:
        return {}
    domain = domain_of(url)
    key = domain_group(domain)
    count = await taken(services.client, cluster=services.cluster, key=key)
    return {"domain": {"name": domain, "under_way": count, "limit": limit}}


def _delayed(job: Job, delayed: Delayed) -> _Said:
    until = from_unix_ms(delayed.until_ms)
    tries = f"{delayed.item.attempt} of {job.spec.retries + 1}"
    detail = {"until": until, **_of_item(delayed)}
    return _Said("delayed", f"try {tries} is due at {until}", detail)


async def _in_flight(services: Services, lookup: Lookup, job: Job, flying: InFlight) -> _Said:
    owner, token = await _owner(services, lookup, job, flying.item.url)
    is_owners = token == flying.token
    detail = {
        "owner": owner if is_owners else None,
        "token": flying.token,
        "claim": flying.claim,
        **_of_item(flying),
    }
    reason = f"worker {owner} works on it" if is_owners else "a former owner took it"
    since = None if flying.since_ms is None else from_unix_ms(flying.since_ms)
    return _Said("in_flight", reason, detail, since)


def _ended(record: ResultRecord) -> _Said:
    detail = msgspec.to_builtins(record)
    del detail["url"]
    at = record.fetched_at
    if record.outcome in (Outcome.DENIED, Outcome.DROPPED):
        del detail["fetched_at"]  # it was never asked for: ``since`` says when that was decided
    match record.outcome:
        case Outcome.FETCHED | Outcome.NOT_MODIFIED:
            reason = f"{record.outcome.value} with status {record.status}"
        case Outcome.REDIRECTED:
            reason = f"redirected to {record.location}"
        case Outcome.DENIED:
            return _Said("denied", f"robots.txt: {record.rule}", detail, at)
        case Outcome.DROPPED if record.rule in _BUDGETS:
            return _Said("over_budget", _BUDGETS[record.rule], detail, at)
        case Outcome.DROPPED:
            reason = f"dropped: the job was {record.rule}"
        case Outcome.FAILED | Outcome.DEAD:
            error = record.error
            said = f"{error.code}: {error.message}" if error else "no reason was kept"
            reason = f"{record.outcome.value} after try {record.attempt}: {said}"
        case _:
            assert_never(record.outcome)
    return _Said("finished", reason, detail, at)


def _of_item(place: Queued | Delayed | InFlight) -> dict[str, Any]:
    item = place.item
    if item.known:
        from common.frontier.visits import decode_known

        return {**_tries(item), "visit": decode_known(item.known).visits + 1}
    return _tries(item)


def _tries(item: Item) -> dict[str, Any]:
    return {"attempt": item.attempt, "depth": item.depth, "referrer": item.referrer}


async def _owner(
    services: Services, lookup: Lookup, job: Job, url: str
) -> tuple[str | None, int | None]:
    """Return who owns the shard of a URL, and under which token."""
    from common.coord import Locks

    name = Locks.task_name(Task(JobId(job.id), lookup.shard(url)))
    for lock in await services.coord.locks.list():
        if lock.name == name:
            return lock.owner, lock.token
    return None, None
