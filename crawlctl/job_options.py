"""The options that make a job's spec, one for each field of ``JobSpec``.

Types and defaults come from the fields themselves; what is added here is the words, and checks of
texts (patterns, headers) that are better refused on the command line than found by a worker.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import click
import msgspec

from common.model.errors import UsageError
from common.model.job import (
    CLEAN_NAMES,
    DEFAULT_USER_AGENT,
    FOLLOW_TAGS,
    LONGEST_INTERVAL_S,
    MORE_TAGS,
    TRAP_NAMES,
    JobSpec,
    as_time,
)
from common.runtime import request_secrets
from crawlctl.parameters import (
    DURATION_SYNTAX,
    SIZE_SYNTAX,
    Number,
    Whole,
    duration_of,
    size_of,
)
from crawlctl.plugin_options import check_name
from crawlctl.show import note

HELP: Final[dict[str, str]] = {
    "scope": "links followed: same host and port as a seed, same registered domain, below a seed's "
    "path, or any",
    "allow": "follow only URLs in which this pattern is found; repeatable",
    "deny": "never follow URLs in which this pattern is found (wins over --allow); repeatable",
    "max_depth": "most links from a seed; 0 is the seeds only",
    "max_pages": "fetch at most this many pages in all, of any status; redirects and URLs that "
    "fail or are denied do not count",
    "max_pages_per_host": "fetch at most this many pages of one host, counted as by --max-pages",
    "follow": f"elements whose links are followed, of {', '.join((*FOLLOW_TAGS, *MORE_TAGS))}",
    "delay": "seconds between two requests to one host, unless its robots.txt asks for more",
    "per_host": "concurrent requests to one host; above 1 the delay counts from start to start",
    "per_ip": "concurrent requests to one IP address, all its hosts and all jobs with this option "
    "together",
    "per_domain": "concurrent requests to one registered domain (public suffix list), as --per-ip",
    "user_agent": "who we say we are; its first word is looked for in robots.txt",
    "header": "request header 'NAME: VALUE'; the value may be @FILE or env:NAME; repeatable",
    "cookie": "cookie NAME=VALUE, sent to the seeds' hosts only; the value may be @FILE or "
    "env:NAME; repeatable",
    "proxy": "HTTP or SOCKS5 proxy (socks5://, the proxy looks names up) for all requests; may be "
    "@FILE or env:NAME",
    "robots": "whether robots.txt is obeyed",
    "sitemaps": "read the sitemaps of each host: those its robots.txt names, and /sitemap.xml",
    "page_robots": "record what pages ask of crawlers (X-Robots-Tag, robots meta), or obey it: "
    "nofollow links are not followed, noindex pages keep no title",
    "plugin": "plugin that the job uses, by the name its workers have it under; repeatable",
    "traps": f"URLs that a site makes without end, of {', '.join(TRAP_NAMES)}, or none",
    "clean": f"what is taken out of links, of {', '.join(CLEAN_NAMES)}; may merge different pages",
    "simhash": "record a 64-bit SimHash of each page's text",
    "shards": "parts the job is split into: no more workers than these can share it",
    "shard_by": "what a part holds: whole hosts; or any URLs, which spreads one host over workers",
    "timeout": "seconds for one request in all",
    "connect_timeout": "seconds to connect",
    "min_rate": "bytes a second that a response has to bring, over ten seconds; 0 is no limit",
    "max_body": "largest decoded body in bytes (k, M, G allowed); larger pages fail",
    "accept": "media type wanted, such as text/html or image/*; others fail; repeatable",
    "store": "warc: keep requests and responses in WARC files, in DIR/warc of crawl, in the "
    "--warc-dir of each worker otherwise",
    "retries": "tries after the first before a URL is given up as dead",
    "recrawl": "visit each page again, first after this time (90, 15m, 6h, 1d), then sooner where "
    "it has changed and later where not; the job goes on until 'job close'",
    "recrawl_min": "never visit a page again sooner  [default: an eighth of --recrawl]",
    "recrawl_max": "never visit a page again later  [default: 8 times --recrawl]",
    "priority": "weight among jobs: each step doubles the share of a worker's places that a job "
    "gets; above 0 more, below 0 less than others; more than 10 steps count as 10",
    "seen": "how known URLs are remembered: exact, or by a Bloom filter alone, in two thirds of "
    "the memory at best, which takes some new URLs for known ones",
    "seen_rate": "the share of new URLs that --seen bloom may take for known ones, 1e-9 to 0.01",
    "allow_private": "allow loopback, private and link-local addresses",
}
_METAVARS: Final = {
    "allow": "REGEX",
    "deny": "REGEX",
    "follow": "TAGS",
    "traps": "NAMES",
    "clean": "NAMES",
    "delay": "SECONDS",
    "timeout": "SECONDS",
    "connect_timeout": "SECONDS",
    "max_body": "BYTES",
    "recrawl": "EVERY",
    "recrawl_min": "TIME",
    "recrawl_max": "TIME",
    "accept": "MIME",
    "user_agent": "TEXT",
    "header": "HEADER",
    "cookie": "COOKIE",
    "proxy": "URL",
    "plugin": "PLUGIN",
    "seen_rate": "RATE",
}
_LISTS: Final = {
    "follow": ("tag", FOLLOW_TAGS),
    "traps": ("rule", (*TRAP_NAMES, "none")),
    "clean": ("step", CLEAN_NAMES),
}
"""Fields given as names with commas: what one is called, and which there are."""

DURATIONS: Final = ("recrawl", "recrawl_min", "recrawl_max")

_NO_WORDS: Final[Mapping[str, str]] = types.MappingProxyType({})

F = TypeVar("F", bound=Callable[..., Any])


def job_options(*, words: Mapping[str, str] = _NO_WORDS, **defaults: Any) -> Callable[[F], F]:
    """Add an option for each field in ``HELP``; the command passes its values to ``spec_from``.

    Args:
        words: help in place of that in ``HELP``, where the command takes more.
        defaults: where the command's own differ from those of the spec.
    """

    def decorate(function: F) -> F:
        for name in reversed(HELP):
            flags = _flag(name) + ("/--no-sitemaps" if name == "sitemaps" else "")
            function = click.option(
                flags, **_parameter(name, words.get(name, HELP[name]), defaults)
            )(function)
        return function

    return decorate


def spec_from(given: Mapping[str, Any], **defaults: Any) -> JobSpec:
    """Return the spec out of a command's parameters; others among them are left alone.

    Args:
        given: the parameters; what is None or empty was not given.
        defaults: values of fields that were not given, such as those of a spec file.

    Raises:
        UsageError: a value is out of range or malformed; names the option.
    """
    options = {name: given[name] for name in HELP if given.get(name) not in (None, ())}
    values = defaults | options
    for name, check in _CHECKS.items():
        for text in _each(values.get(name)):
            check(_flag(name), text)
    spec = JobSpec(**values)
    _refuse_without_effect(spec, values)
    return spec


def note_nameless(spec: JobSpec, *, quiet: bool) -> None:
    """Say that sites are not told who crawls them, unless the user's own are meant."""
    if spec.user_agent == DEFAULT_USER_AGENT and not spec.allow_private and not quiet:
        note(
            f"sites are told no more than {DEFAULT_USER_AGENT}: say how to reach you, as in "
            "--user-agent 'mybot/1.0 (+https://my.example/bot)'"
        )


def _refuse_without_effect(spec: JobSpec, given: Mapping[str, Any]) -> None:
    """Refuse options that do nothing beside others; jobs that have them already are left alone.

    Raises:
        UsageError: names the option and what to do about it.
    """
    if len(spec.traps) > 1 and "none" in spec.traps:
        others = ",".join(name for name in spec.traps if name != "none")
        raise UsageError(f"--traps: none is no rule beside others; write none, or {others}")
    if spec.sitemaps and spec.max_depth == 0:
        raise UsageError(
            "--sitemaps: with --max-depth 0 only seeds are fetched; leave it out, or give "
            "--max-depth 1 for the pages that sitemaps name"
        )
    if "seen_rate" in given and spec.seen != "bloom":
        raise UsageError(
            "--seen-rate: it is the rate of --seen bloom, and --seen is exact, which errs never; "
            "add --seen bloom, or leave it out"
        )
    if "connect_timeout" in given and spec.connect_timeout > spec.timeout:
        raise UsageError(
            f"--connect-timeout: {spec.connect_timeout:g} is longer than the {spec.timeout:g} "
            "seconds of --timeout for all of a request; give less, or a longer --timeout"
        )


def option_name(field: str) -> str:
    """Return how users write a field of the spec: ``--max-depth`` for ``max_depth``."""
    return f"--{field.replace('_', '-')}"


_flag = option_name


def _parameter(name: str, text: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``click.option`` for a field."""
    kind = get_type_hints(JobSpec)[name]
    field = next(one for one in msgspec.structs.fields(JobSpec) if one.name == name)
    if kind is bool:
        off = "  [default: no-sitemaps]" if name == "sitemaps" else ""
        return {"help": text + off, "is_flag": True, "default": None}
    shown = _shown_default(name, defaults.get(name, field.default))
    parameter: dict[str, Any] = {
        "help": f"{text}  [default: {shown}]" if shown else text,
        "metavar": _METAVARS.get(name),
        "default": None,
    }
    if name in _LISTS:
        return parameter | {"callback": _split_names}
    if name == "max_body":
        return parameter | {"callback": _parse_size}
    if name in DURATIONS:
        return parameter | {"callback": _parse_duration}
    if get_origin(kind) is tuple:
        return parameter | {"multiple": True}
    return parameter | {"type": _click_type(kind)}


def _click_type(kind: Any) -> click.ParamType[Any]:
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if get_origin(kind) is types.UnionType:
        kind = next(one for one in get_args(kind) if one is not type(None))
    known: dict[Any, click.ParamType[Any]] = {
        int: Whole(),
        float: Number(),
        str: click.STRING,
    }
    return known[kind]


def _shown_default(name: str, default: object) -> str:
    if default is None or default == ():
        return ""
    if name == "max_body":
        return "16M"
    if isinstance(default, tuple):
        return ",".join(default)
    return f"{default:g}" if isinstance(default, float) else str(default)


def _each(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (str(value),)


def _split_names(
    _ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(name.strip().lower() for name in value.split(",") if name.strip())
    if not names:
        assert param.name is not None
        what, known = _LISTS[param.name]
        raise UsageError(
            f"{_flag(param.name)}: {value!r} names no {what}; choose from {', '.join(known)}"
        )
    return names


def _parse_size(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    size = size_of(value)
    if size is None:
        raise UsageError(f"--max-body: {value!r} is not a size; {SIZE_SYNTAX}")
    return size


def _parse_duration(_ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    seconds = duration_of(value)
    if seconds is None:
        assert param.name is not None
        raise UsageError(
            f"{_flag(param.name)}: {value!r} is not a time; {DURATION_SYNTAX}, from 1s to "
            f"{as_time(LONGEST_INTERVAL_S)}"
        )
    return seconds


def _check_pattern(option: str, text: str) -> None:
    try:
        text.encode()  # of a spec file; arguments are text
        re.compile(text)
    except (re.error, UnicodeEncodeError) as error:
        raise UsageError(f"{option}: {text!r} is not a regular expression ({error})") from error


def _check_user_agent(option: str, text: str) -> None:
    if not text.strip() or not text.isprintable():
        raise UsageError(f"{option}: {text!r} cannot be sent; give a line of printable text")


def _check_media_type(option: str, text: str) -> None:
    if not re.fullmatch(r"[\w.+-]+/(?:[\w.+-]+|\*)|\*/\*", text):
        raise UsageError(f"{option}: {text!r} is not a media type, as in text/html or image/*")


def _shared(check: Callable[[str], None]) -> Callable[[str, str], None]:
    """Return a check that knows the name of its option by itself."""
    return lambda _option, text: check(text)


_CHECKS: Final[Mapping[str, Callable[[str, str], None]]] = {
    "allow": _check_pattern,
    "deny": _check_pattern,
    "header": _shared(request_secrets.check_header),
    "cookie": _shared(request_secrets.check_cookie),
    "user_agent": _check_user_agent,
    "accept": _check_media_type,
    "proxy": _shared(request_secrets.check_proxy),
    "plugin": check_name,
}
