"""Every error crawlctl raises on purpose.

::

    CrawlerError                     exit code 1
    ├ UsageError                     2  wrong use: names the field and the remedy
    │ └ SettingsError                2  a setting, environment variable or TOML entry
    ├ RefusedError                   4  not owner, stale token, same id with another spec, in use
    ├ NotFoundError                  1  no such job, lock or node
    ├ ServiceUnavailable             3  names the endpoint; safe to retry
    │ ├ CoordUnavailable               etcd
    │ └ FrontierUnavailable            Redis/Valkey
    ├ LeaseLost                      1  the session is dead for ever; what it protected must stop
    ├ NotMaster                      1  a term-guarded write was refused: somebody else is master
    ├ UnknownOutcome                 1  a write may or may not have been applied, now or later
    └ ScriptBug                      1  a Lua script answered something it cannot answer

Expected answers (lock held by another, claim gone, offer refused) are values, not exceptions.
"I lost" and "I do not know" are always different types. Driver exceptions stop at the adapters
(``common.coord``, ``common.frontier``) and are chained with ``from``.
"""

from __future__ import annotations

from typing import Self


class CrawlerError(Exception):
    """Something crawlctl cannot go on with; the message is one clear sentence for the user."""

    exit_code = 1


class UsageError(CrawlerError):
    """Wrong use: the message names the field, what was expected and an option that would help."""

    exit_code = 2

    @classmethod
    def unreadable(cls, option: str, path: str, error: OSError) -> Self:
        """Return what to raise when the file that an option names cannot be read."""
        reason = error.strerror or error
        return cls(f"{option}: cannot read {path!r} ({reason}); give a file that can be read")


class SettingsError(UsageError):
    """A process setting (option, environment variable or TOML entry) is wrong."""


class RefusedError(CrawlerError):
    """Refused by a rule: not the owner, a stale token, the same id with another spec, in use."""

    exit_code = 4


class NotFoundError(CrawlerError):
    """The named job, lock or node does not exist."""


class ServiceUnavailable(CrawlerError):
    """A service did not answer in time; the message names the endpoint. Safe to retry."""

    exit_code = 3


class CoordUnavailable(ServiceUnavailable):
    """etcd did not answer in time."""


class FrontierUnavailable(ServiceUnavailable):
    """Redis/Valkey did not answer in time, or refuses writes for now (LOADING, OOM, READONLY)."""


class LeaseLost(CrawlerError):
    """The session's lease is gone for ever; every lock and key under it must be taken as lost."""


class NotMaster(CrawlerError):
    """A write guarded by a term was refused: the term is over."""


class UnknownOutcome(CrawlerError):
    """A write got no answer: it may have been applied, or may still be. Re-read, never repeat."""


class ScriptBug(CrawlerError):
    """A server-side script failed or answered outside its contract."""
