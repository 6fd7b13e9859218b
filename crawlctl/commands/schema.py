"""``schema``: JSON Schema of what crawlctl takes and gives."""

from __future__ import annotations

from typing import Any, Final

import click

from crawlctl.framework import Command

RESULT_FIELDS: Final = {
    "url": "canonical URL: the identity of the page",
    "final_url": "last URL requested for it; differs only after a bounce back to the same page",
    "status": "HTTP status; null where no response was received",
    "outcome": "how the URL ended; also the name of the counter it moved",
    "location": "absolute redirect target of a redirected URL",
    "depth": "links from a seed when it was first admitted",
    "referrer": "page it was first found on; null for a seed",
    "fetched_at": "when it was finished, RFC 3339 UTC",
    "elapsed_ms": "milliseconds from the start of the request to the last byte of the body",
    "ip": "address connected to",
    "content_type": "Content-Type as sent",
    "encoding": "character encoding the body was read with, as named by WHATWG",
    "bytes": "length of the decoded body",
    "sha256": "hex digest of the decoded body",
    "truncated": "whether the body ended before it was complete",
    "title": "text of the title element",
    "robots": "what X-Robots-Tag and robots meta elements say: noarchive, nofollow, noindex",
    "canonical": "canonical URL that the page names for itself (link rel=canonical)",
    "simhash": "64-bit SimHash of the text, 16 hex digits; with --simhash",
    "lastmod": "when it changed last, by the sitemap it was found in, as written there",
    "priority": "from 0 to 1, by the sitemap it was found in",
    "outlinks": "distinct links found, before scope",
    "attempt": "which try of this visit it was, from 1",
    "visit": "which visit this was, from 1; with --recrawl there are more",
    "changed": "whether it was found changed since the last visit that was answered; null where "
    "there was none, or this one was not",
    "worker": "id of the worker that committed it",
    "token": "fencing token under which it was committed",
    "rule": "what denied or dropped it",
    "error": "why it failed or died",
    "warc": "where its response record is",
    "extra": "what the job's plugins add: name of the plugin -> object; null where none did",
}


@click.command(cls=Command, examples=["crawlctl schema job", "crawlctl schema result | jq ."])
@click.argument("what", type=click.Choice(["job", "result"]))
def schema(*, what: str) -> None:
    """Print the JSON Schema of a job's spec or of a result record."""
    from crawlctl.show import print_json

    print_json(job_schema() if what == "job" else result_schema(), indent=2)


def job_schema() -> dict[str, Any]:
    """Return the schema of a job's spec, with the words of its options."""
    from common.model.job import JobSpec
    from crawlctl.job_options import HELP

    return _described(JobSpec, HELP)


def result_schema() -> dict[str, Any]:
    """Return the schema of a result record."""
    from common.model.records import ResultRecord

    return _described(ResultRecord, RESULT_FIELDS)


def _described(kind: type, words: dict[str, str]) -> dict[str, Any]:
    import msgspec

    document = msgspec.json.schema(kind)
    properties = document["$defs"][kind.__name__]["properties"]
    for name, words_of_field in words.items():
        # A definition that is referred to keeps its own description beside this one.
        properties[name] = {**properties[name], "description": words_of_field}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document}
