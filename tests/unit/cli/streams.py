"""Result streams whose content is known, as a sink sees them."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

SHARDS = 3


class FixedStreams:
    """``total`` records spread over the shards, always the same ones."""

    def __init__(self, total: int) -> None:
        self._entries: list[list[tuple[tuple[int, int], bytes]]] = [[] for _ in range(SHARDS)]
        for number in range(total):
            # Ids as Redis makes them: several within a millisecond, compared by numbers.
            entry = (1000 + number // 7, number % 7)
            self._entries[number % SHARDS].append((entry, self._record(number)))

    @staticmethod
    def _record(number: int) -> bytes:
        failed = number % 5 == 0
        return msgspec.json.encode(
            {
                "url": f"http://h/{number}",
                "outcome": "failed" if failed else "fetched",
                "depth": number % 4,
                "status": None if failed else 200,
                "error": {"code": "dns_not_found", "message": "x"} if failed else None,
            }
        )

    def only(self, total: int) -> FixedStreams:
        """Return the streams as they were after their first records."""
        return FixedStreams(total)

    def records(self) -> list[bytes]:
        return [record for shard in self._entries for _, record in shard]

    def urls(self) -> list[str]:
        return [msgspec.json.decode(record)["url"] for record in self.records()]

    async def results(self, shard: int, *, after: str, count: int) -> list[tuple[str, bytes]]:
        first, second = after.split("-")
        entries = self._entries[shard]
        at = bisect_right(entries, (int(first), int(second)), key=lambda entry: entry[0])
        return [(f"{one}-{two}", record) for (one, two), record in entries[at : at + count]]


class GrowingStreams(FixedStreams):
    """The same streams, of which a little more can be seen every time."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.turns = 0

    def grow(self) -> None:
        self.turns += 1

    async def results(self, shard: int, *, after: str, count: int) -> list[tuple[str, bytes]]:
        return await super().results(shard, after=after, count=min(count, 1 + self.turns % 5))
