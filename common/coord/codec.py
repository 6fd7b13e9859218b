"""Stored values are JSON of typed records; unknown fields are allowed, for rolling upgrades."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from common.coord.wire import KeyValue
from common.model.errors import CrawlerError

Record = TypeVar("Record")


def encoded(value: msgspec.Struct) -> bytes:
    """Return the stored form of a record."""
    return msgspec.json.encode(value)


def decoded(kv: KeyValue, kind: type[Record]) -> Record:
    """Read the record a key holds.

    Raises:
        CrawlerError: it is none; names the key.
    """
    try:
        return msgspec.json.decode(kv.value, type=kind)
    except msgspec.DecodeError as error:
        raise CrawlerError(
            f"etcd key {kv.key} does not hold a {kind.__name__} ({error}); "
            "a newer version of crawlctl may have written it"
        ) from error
