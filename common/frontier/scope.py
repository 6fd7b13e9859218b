"""The scope of a job as a set of keys in Redis, so that it grows while the job runs.

Seeds put their keys there, and where a seed redirects its target's host joins. What the keys are is
decided by ``common.web.scope``. A seed's authority is also kept as ``@authority`` where the job
sends headers or cookies: those go to the seeds' hosts only, not to hosts that joined later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from common.frontier.client import FrontierClient
from common.frontier.keys import TaskKeys
from common.model.ids import JobId, Task


class ScopeSet:
    """The scope keys of one job."""

    def __init__(self, client: FrontierClient, *, cluster: str, job: JobId) -> None:
        self._client = client
        self._key = TaskKeys(cluster, Task(job, 0)).scope

    async def add(self, keys: Iterable[str]) -> None:
        """Widen the scope.

        Raises:
            FrontierUnavailable: no answer; adding again is harmless.
        """
        members = sorted(set(keys))
        if members:
            await self._client.commands([("SADD", self._key, *members)])

    async def contains(self, keys: Sequence[str]) -> list[bool]:
        """Tell for each key whether it is in scope.

        Raises:
            FrontierUnavailable: no answer.
        """
        if not keys:
            return []
        (answers,) = await self._client.commands([("SMISMEMBER", self._key, *keys)])
        return [bool(answer) for answer in answers]


def trusted_key(authority: str) -> str:
    """Return the key that marks a seed's own authority."""
    return "@" + authority
