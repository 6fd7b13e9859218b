"""Takes one guard at a time out of a copy of the crawler: the judge must notice.

A mutant is a textual patch of a copy, which must apply exactly once; the crawler itself has no
switch. A mutant that no longer applies fails loudly: the guard has moved, and so must its mutant.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import crawlctl

PACKAGES = ("crawlctl", "coordinator", "worker", "common")
SOURCE = Path(crawlctl.__file__).parents[1]


class Patch(NamedTuple):
    path: str
    old: str
    new: str


class Mutant(NamedTuple):
    """A guard taken out."""

    guard: str
    scenario: str
    patches: tuple[Patch, ...]
    kinds: frozenset[str]
    """What the judge must say, at least one of it."""


class PatchError(AssertionError):
    """A patch does not apply."""


def patched(patches: Sequence[Patch]) -> dict[str, str]:
    """Return the text of each file that is patched, by its path.

    Raises:
        PatchError: one of them does not apply exactly once.
    """
    texts: dict[str, str] = {}
    for patch in patches:
        text = texts.get(patch.path) or (SOURCE / patch.path).read_text()
        if text.count(patch.old) != 1:
            raise PatchError(f"{patch.path} holds {text.count(patch.old)} times: {patch.old!r}")
        texts[patch.path] = text.replace(patch.old, patch.new)
    return texts


def mutated(patches: Sequence[Patch], folder: Path) -> Path:
    """Return a copy of the packages with these patches; raises as :func:`patched` does."""
    texts = patched(patches)
    for package in PACKAGES:
        shutil.copytree(
            SOURCE / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for path, text in texts.items():
        (folder / path).write_text(text)
    return folder


_LUA = "common/frontier/lua/"
MUTANTS = {
    "fence": Mutant(
        "fence check of owners (_guard.lua)",
        "late-calls",
        (Patch(_LUA + "_guard.lua", "if tonumber(token) < fence then return { 'STALE' } end", ""),),
        frozenset({"stale write"}),
    ),
    "term": Mutant(
        "term compare of masters (_guard.lua)",
        "late-master",
        (Patch(_LUA + "_guard.lua", "(t > 0 and t < tonumber(m[2])) or r < tonumber(m[3])",
               "r < tonumber(m[3])"),),
        frozenset({"stale write"}),
    ),
    "deadline": Mutant(
        "the session's own deadline (session.py)",
        "cut-from-etcd",
        (Patch("common/coord/session.py",
               "return 0.0 if self._lost.done() else max(0.0, self._deadline_s - _now_s())",
               "return 0.0 if self._lost.done() else 60.0"),),
        frozenset({"without lock"}),
    ),
    "takeover": Mutant(
        "requeue of a former owner's claims (owner.py)",
        "kill-with-pages",
        (Patch("common/frontier/owner.py", "return not is_recent and claim not in held",
               "return False"),),
        frozenset({"hang", "lost"}),
    ),
    "completion": Mutant(
        "second completion pass and seal (completion.py, seal.lua, job.py)",
        "slow-looks",
        (
            Patch("coordinator/completion.py", "return first is not None and first == second",
                  "return second is not None"),
            Patch(_LUA + "seal.lua", "  return { 'MOVED' }", ""),
            Patch("common/frontier/job.py", "        return all(\n            look.state is",
                  "        return True or all(\n            look.state is"),
        ),
        frozenset({"lost", "after the end", "counters"}),
    ),
    "seal": Mutant(
        "offers refused once sealed or closed (offer.lua)",
        "late-offer",
        (
            Patch(_LUA + "offer.lua", "if state == 'sealed' then return { 'RETRY' } end", ""),
            Patch(_LUA + "offer.lua",
                  "if state == 'closed' or state == 'cancelled' then return { 'CLOSED' } end", ""),
        ),
        frozenset({"after the end", "counters"}),
    ),
    "server-run": Mutant(
        "server-run check (_guard.lua, link.py)",
        "restart-redis",
        (Patch(_LUA + "_guard.lua", "if m[2] ~= run then return { 'RUN' } end", ""),
         Patch("common/frontier/link.py",
               'if not all(one.run in ("", self.run_id) for one in calls):', "if False:")),
        frozenset({"unverified run"}),
    ),
    "ghost-slot": Mutant(
        "what a former owner has on the wire (permit.lua, requeue.lua)",
        "ghost",
        (Patch(_LUA + "permit.lua",
               "local is_dead = tonumber(string.match(name, '^%d+')) < dead_below",
               "local is_dead = true"),
         Patch(_LUA + "requeue.lua",
               "if owner == token or owner < dead_below then",
               "if true then")),
        frozenset({"impolite"}),
    ),
    "offered-first": Mutant(
        "outlinks offered before the commit (committer.py)",
        "crash-with-links",
        (Patch(
            "worker/committer.py",
            "        if (refusal := await self._offer_all(found)) is not None:\n",
            "        refusal = await self._settle(batch)\n"
            "        if refusal is not None:\n"
            "            return refusal\n"
            "        batch = []\n"
            "        if (refusal := await self._offer_all(found)) is not None:\n",
        ),),
        frozenset({"lost"}),
    ),
    "undone": Mutant(
        "pages whose links a crash took back are fetched again (adoption.py)",
        "rolled-back",
        (Patch("worker/adoption.py", "self.undone.update(self._held)", "pass"),),
        frozenset({"lost"}),
    ),
    "claim-once": Mutant(
        "a claim is committed once (commit.lua)",
        "lost-replies",
        (Patch(_LUA + "commit.lua", "  if mine[claim] then", "  if true then"),
         Patch(_LUA + "commit.lua", "is_paid(mine[claim])", "false")),
        frozenset({"twice", "counters"}),
    ),
    "reconcile": Mutant(
        "claims whose reply was lost are found again (task.py)",
        "lost-replies",
        (Patch("worker/task.py",
               "return (None if await self._adopter.adopt() else Refusal.STALE), 0",
               "return None, 0"),),
        frozenset({"hang"}),
    ),
    "nonce": Mutant(
        "whose lock it is shows in its nonce (lock.py)",
        "lost-lock-replies",
        (Patch("common/coord/lock.py", "is_ours = kv.value == put.value", "is_ours = False"),),
        frozenset({"hang"}),
    ),
    "host-pace": Mutant(
        "a host's last request outlives its owner (permit.lua, _hosts.lua, claim.lua, release.lua)",
        "hand-over",
        (Patch(_LUA + "permit.lua",
               "  at = math.max(at, (fewest == 1 and last_end or "
               "math.max(last_start, windows)) + strict)\n", ""),
         Patch(_LUA + "_hosts.lua",
               "if ago >= 0 and delay > 0 then postpone(ready, pace, host, now - ago + delay) end",
               ""),
         Patch(_LUA + "claim.lua",
               "local rest = items and delay > 0 and math.max(due, now) + delay + 1 or 0",
               "local rest = 0"),
         # A page that a drained owner gives back right after robots.txt brings its turn along.
         Patch(_LUA + "release.lua",
               "  if ARGV[at + 5] ~= '0' then postpone(KEYS[2], KEYS[3], ARGV[at + 1], now + "
               "tonumber(ARGV[at + 5])) end\n", "")),
        frozenset({"impolite"}),
    ),
}  # fmt: skip
