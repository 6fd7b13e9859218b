"""Every rule of coordination and of the protocols, its guard, and the tests that fail without it.

``scripts/chaos --guards`` takes each guard out of a *copy* of the crawler, as the mutants do, and
runs the test that is said to need it there: it must fail. R1 to R20 are rules for users of etcd, P1
to P18 rules of the protocols between etcd, Redis and the workers. What only whole crawls under
faults can show is in :mod:`tests.chaos.mutants`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.chaos.mutants import Patch, mutated

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300


class Guard(NamedTuple):
    """What keeps a rule, and who notices when it is gone."""

    says: str
    patches: tuple[Patch, ...]
    tests: str
    """A file below ``tests/`` and, after ``::``, the name of a test in it."""


class Outcome(NamedTuple):
    """What the tests said of a copy without the guard."""

    is_noticed: bool
    said: str


def without(guard: Guard, folder: Path) -> Outcome:
    """Run the guard's tests on a copy without it.

    Args:
        guard: to take out.
        folder: for the copy; made here.
    """
    mutated(guard.patches, folder)
    # Nothing compiled comes along: of a file changed twice within a second an old one would be run.
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    try:
        done = _tested(guard, folder)
    except subprocess.TimeoutExpired:
        return Outcome(False, f"not over after {TIMEOUT_S} s")
    failed = re.findall(r"^FAILED (?:.*? - )?(.*)", done.stdout, re.MULTILINE)
    summary = done.stdout.strip().rpartition("\n")[2] or done.stderr.strip()[-200:]
    # 1: tests ran and failed. Anything else (2: broken off, 4: no such test) proves nothing.
    return Outcome(done.returncode == 1 and bool(failed), failed[0] if failed else summary)


def _tested(guard: Guard, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{guard.tests}"],
        cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        # pytest cuts what it says of a failure to the width of the terminal.
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "300"},
    )  # fmt: skip


_LUA = "common/frontier/lua/"
_COORD = "common/coord/"
_STALE = "if tonumber(token) < fence then return { 'STALE' } end"
GUARDS = {
    "R1": Guard(
        "a lease is no mutual exclusion: the data compares the token",
        (Patch(_LUA + "_guard.lua", _STALE, ""),),
        "integration/frontier/test_adopt.py::test_a_newer_token_shuts_the_older_one_out_of_every_script",
    ),
    "R2": Guard(
        "the term is the create revision of the election key",
        (Patch(_COORD + "election.py", "return Term(found.create_revision)",
               "return Term(session.lease)"),),
        "integration/coord/test_election.py::test_the_term_is_the_create_revision_of_the_election_key",
    ),
    "R2-lock": Guard(
        "the token of a lock is the revision of its acquisition",
        (Patch(_COORD + "lock.py", "Acquired(Token(reply.revision))", "Acquired(Token(7))"),),
        "integration/coord/test_lock.py::test_tokens_grow_with_every_acquisition",
    ),
    "R3-release": Guard(
        "a lock is released under its token only",
        (Patch(_COORD + "lock.py", "compare=[created_at(key, token)],", "compare=[],"),),
        "integration/coord/test_lock.py::test_a_stale_token_releases_nothing",
    ),
    "R3-publish": Guard(
        "an assignment is published by the present term only",
        (Patch(_COORD + "assignments.py",
               "            created_at(self._keys.election, term),\n", ""),),
        "integration/coord/test_assignments.py::test_only_the_present_term_publishes",
    ),
    "R3-job": Guard(
        "a master changes a job in its own term only",
        (Patch(_COORD + "jobs.py", "guards.append(created_at(self._keys.election, term))",
               "pass"),),
        "integration/coord/test_jobs.py::test_a_masters_change_needs_both_its_term_and_the_revision",
    ),
    "R4": Guard(
        "a new master raises its fence before it decides anything",
        (Patch("coordinator/plan.py", "if is_applied and view.memory.fenced == view.revision:",
               "if is_applied:"),),
        "integration/coordinator/test_election.py::test_a_new_master_raises_its_fence_so_that_the_old_one_can_change_nothing",
    ),
    "R5": Guard(
        "a shard that lost its fence is refused, not made anew",
        (Patch(_LUA + "adopt.lua", "if not m[1] then return { 'MISSING' } end",
               "if not m[1] then return { 'OK', 0, 0, 1 } end"),),
        "integration/frontier/test_adopt.py::test_a_missing_shard_is_refused_to_everyone_and_made_by_no_one",
    ),
    "R6": Guard(
        "tokens that went back with a restored etcd are refused",
        (Patch(_LUA + "adopt.lua",
               "if tonumber(ARGV[3]) < tonumber(m[3]) then return { 'STALE' } end", ""),),
        "chaos/test_rules.py::test_after_a_restore_of_etcd_lower_tokens_are_refused",
    ),
    "R7-sent": Guard(
        "the deadline counts from when the renewal was sent",
        (Patch(_COORD + "session.py", "            self._deadline_s = sent_at_s +",
               "            self._deadline_s = _now_s() +"),),
        "integration/coord/test_session.py::test_the_deadline_counts_from_when_the_renewal_was_sent",
    ),
    "R7-granted": Guard(
        "the time to live is what etcd granted",
        (Patch(_COORD + "session.py", "ttl_s=float(granted.ttl_s)", "ttl_s=ttl_s"),),
        "integration/coord/test_session.py::test_the_time_to_live_is_what_etcd_granted",
    ),
    "R7-clock": Guard(
        "time in suspension counts",
        (Patch(_COORD + "session.py", 'getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)',
               "time.CLOCK_MONOTONIC"),),
        "unit/coord/test_values.py::test_time_in_suspension_counts_as_time_of_the_lease",
    ),
    "R8": Guard(
        "a renewal that hangs leaves time for another one",
        (Patch(_COORD + "session.py", "_RENEWAL_RATIO: Final = 0.2",
               "_RENEWAL_RATIO: Final = 0.4"),),
        "unit/coord/test_values.py::test_a_session_leaves_time_for_a_second_renewal_and_for_stopping",
    ),
    "R9": Guard(
        "a session ends before its lease ends in etcd",
        (Patch(_COORD + "session.py", "MARGIN_RATIO: Final = 0.35",
               "MARGIN_RATIO: Final = -0.5"),),
        "integration/coord/test_session.py::test_a_silent_etcd_ends_the_session_before_its_lease_ends_there",
    ),
    "R10": Guard(
        "a lost session is dead for ever",
        (Patch(_COORD + "session.py", "        self._lose(trouble)\n",
               "        self._lose(trouble)\n"
               "        while await asyncio.sleep(0.1, True):\n"
               "            self._deadline_s = _now_s() + await self._etcd.keep_alive(\n"
               "                self.lease, timeout_s=ATTEMPT_TIMEOUT_S)\n"),
         Patch(_COORD + "session.py", "return 0.0 if self._lost.done() else max(", "return max("),
         Patch(_COORD + "session.py", "        return not self._lost.done()\n",
               "        return self._deadline_s > _now_s()\n")),
        "integration/coord/test_session.py::test_a_lost_session_is_dead_for_ever_though_its_lease_still_lives",
    ),
    "R11": Guard(
        "whose key it is is read again after a victory",
        (Patch(_COORD + "election.py",
               "                found = await self._etcd.get(self._key)\n            except",
               "                found = await self._etcd.get(self._key)\n"
               "                if reply.succeeded:\n"
               "                    return Term(reply.revision)\n            except"),),
        "integration/coord/test_election.py::test_a_victory_that_is_over_when_its_reply_arrives_is_not_claimed",
    ),
    "R11-session": Guard(
        "a victory counts only while its session lives",
        (Patch(_COORD + "election.py", "            session.check()\n            return Term(",
               "            return Term("),),
        "integration/coord/test_election.py::test_a_victory_counts_only_while_its_session_lives",
    ),
    "R12-repeat": Guard(
        "a write without an answer is not repeated blindly",
        (Patch(_COORD + "transport.py", "return isinstance(error, CoordUnavailable) and",
               "return isinstance(error, CoordUnavailable | UnknownOutcome) and"),),
        "integration/coord/test_unknown_outcomes.py::test_a_transaction_without_an_answer_is_unknown_and_not_repeated",
    ),
    "R12-nonce": Guard(
        "whose a lock is shows in its nonce",
        (Patch(_COORD + "lock.py", "is_ours = kv.value == put.value", "is_ours = False"),),
        "integration/coord/test_unknown_outcomes.py::test_a_lock_whose_reply_was_lost_is_recognised_as_ours",
    ),
    "R12-name": Guard(
        "the owner's name says nothing of whose a lock is",
        (Patch(_COORD + "lock.py", "is_ours = kv.value == put.value",
               "is_ours = kv.value[:12] == put.value[:12]"),),
        "integration/coord/test_unknown_outcomes.py::test_a_lock_taken_meanwhile_by_another_with_the_same_name_is_not_taken_for_ours",
    ),
    "R12-door": Guard(
        "a late request finds the door closed",
        (Patch(_COORD + "lock.py",
               "compare=[*(absent(put.key) for put in pending), self._door.guard(session)],",
               "compare=[absent(put.key) for put in pending],"),),
        "integration/coord/test_unknown_outcomes.py::test_a_late_request_does_not_take_a_released_lock_again",
    ),
    "R12-cancel": Guard(
        "what a cancelled acquisition took is given back",
        (Patch(_COORD + "door.py",
               "        await asyncio.wait({session.finish(_undone(session, running, undo))})\n",
               ""),),
        "integration/coord/test_unknown_outcomes.py::test_a_cancelled_acquisition_leaves_no_lock_not_even_later",
    ),
    "R13": Guard(
        "reads that decide are answered by a majority",
        (Patch(_COORD + "wire.py", "    return messages.RangeRequest(key=operation.key.encode())",
               "    return messages.RangeRequest(key=operation.key.encode(), serializable=True)"),),
        "integration/coord/test_cluster.py::test_a_member_without_a_majority_answers_no_reads",
    ),
    "R14": Guard(
        "a lease may end at any time",
        (Patch(_COORD + "session.py", "            if ttl_s <= 0:", "            if ttl_s < 0:"),),
        "integration/coord/test_session.py::test_a_revoked_lease_ends_the_session_at_the_next_renewal",
    ),
    "R15-compacted": Guard(
        "after a compaction everything is listed again",
        (Patch(_COORD + "mirror.py", "revision=self.revision)\n                is_list_due = True",
               "revision=self.revision)\n                self.revision += 1"),),
        "integration/coord/test_mirror.py::test_a_mirror_lists_again_when_the_history_it_missed_is_compacted",
    ),
    "R15-twice": Guard(
        "an event that comes twice counts once",
        (Patch(_COORD + "mirror.py",
               "            if kv.mod_revision <= applied:\n                continue\n", ""),),
        "integration/coord/test_mirror.py::test_events_that_come_twice_change_nothing",
    ),
    "R15-resume": Guard(
        "a watch goes on from the last event",
        (Patch(_COORD + "mirror.py", "start_revision=self.revision + 1", "start_revision=0"),),
        "integration/coord/test_mirror.py::test_a_mirror_misses_nothing_while_it_is_cut_off",
    ),
    "R16": Guard(
        "waiting times are spread by chance",
        (Patch(_COORD + "jitter.py", "return random.uniform(low_s, high_s)", "return high_s"),),
        "unit/coord/test_values.py::test_back_off_grows_to_its_bound",
    ),
    "R17": Guard(
        "a worker without its lease stops",
        (Patch("worker/task.py", "return not self._lost and self._session.is_live and",
               "return not self._lost and"),
         Patch("worker/node.py", "while not stop.is_set() and self._session.is_live:",
               "while not stop.is_set():"),
         Patch("worker/node.py", "[changed, lost, stopping, asked]", "[changed, stopping, asked]")),
        "integration/cluster/test_life_of_a_node.py::test_a_worker_that_cannot_renew_its_lease_stops_before_it_can_have_ended",
    ),
    "R18": Guard(
        "a lock is let go after the work under it has ended",
        (Patch("worker/owned.py",
               "[task for task, (_, running) in self._runners.items() if running.done()]",
               "[task for task, (one, running) in self._runners.items()\n"
               "                 if running.done() or one._draining]"),),
        "integration/cluster/test_life_of_a_node.py::test_the_lock_of_a_drained_task_is_held_until_its_last_page_has_ended",
    ),
    "R19": Guard(
        "an etcd that forgot the token is told the user again",
        (Patch(_COORD + "transport.py",
               "if token is None or not failures.is_token_invalid(error):", "if True:"),),
        "integration/coord/test_client.py::test_a_restarted_etcd_that_forgot_the_token_is_told_the_user_again",
    ),
    "R20": Guard(
        "a process that stood still notices before its heartbeat runs",
        (Patch(_COORD + "session.py", "if not self._lost.done() and self.remaining_s() <= 0:",
               "if False:"),),
        "integration/coord/test_session.py::test_a_process_that_was_stopped_notices_the_loss_before_its_heartbeat_runs",
    ),
    "P1-passes": Guard(
        "a job is finished after two equal passes",
        (Patch("coordinator/completion.py", "return first is not None and first == second",
               "return second is not None"),),
        "unit/coordinator/test_completion.py",
    ),
    "P1-seal": Guard(
        "a shard that moved is not sealed",
        (Patch(_LUA + "seal.lua", "  return { 'MOVED' }", ""),),
        "integration/frontier/test_master.py::test_a_shard_that_moved_since_it_was_seen_is_not_sealed",
    ),
    "P1-reread": Guard(
        "all are sealed on one server run",
        (Patch(_LUA + "seal.lua", "or m[1] ~= ARGV[4] or", "or"),
         Patch("common/frontier/job.py", "            and look.run == before.run == run\n", "")),
        "integration/frontier/test_master.py::test_shards_seen_on_another_server_run_are_not_taken_for_sealed",
    ),
    "P1-offers": Guard(
        "a sealed shard takes no offers",
        (Patch(_LUA + "offer.lua", "if state == 'sealed' then return { 'RETRY' } end", ""),),
        "integration/frontier/test_master.py::test_empty_shards_are_sealed_and_offers_must_wait",
    ),
    "P2": Guard(
        "a job is changed at the revision that was decided on",
        (Patch(_COORD + "jobs.py", "guards: list[Compare] = [modified_at(key, expected)]",
               "guards: list[Compare] = []"),),
        "integration/coord/test_jobs.py::test_a_change_decided_on_an_old_revision_is_stale",
    ),
    "P3-term": Guard(
        "scripts of a former master are refused",
        (Patch(_LUA + "_guard.lua", "(t > 0 and t < tonumber(m[2])) or r < tonumber(m[3])",
               "r < tonumber(m[3])"),),
        "integration/frontier/test_master.py::test_an_older_fence_is_refused_everywhere_once_a_newer_was_seen",
    ),
    "P3-revision": Guard(
        "scripts of the command line are compared by job revision",
        (Patch(_LUA + "_guard.lua", "or r < tonumber(m[3]) then", "then"),),
        "integration/frontier/test_master.py::test_the_command_line_is_compared_by_revision_alone",
    ),
    "P4": Guard(
        "creating a shard that exists keeps what is in it",
        (Patch(_LUA + "create.lua", "if redis.call('EXISTS', KEYS[1]) == 1 then",
               "if false then"),),
        "integration/frontier/test_master.py::test_creating_again_keeps_what_is_there",
    ),
    "P5": Guard(
        "claims whose answer was lost are found again",
        (Patch("common/frontier/owner.py", "return not is_recent and claim not in held",
               "return False"),),
        "integration/frontier/test_recover.py::test_claims_whose_answer_was_lost_are_found_and_held_ones_are_kept",
    ),
    "P5-late": Guard(
        "a claim that comes late takes nothing",
        (Patch(_LUA + "claim.lua",
               "if redis.call('HGET', KEYS[1], 'adoption') ~= ARGV[4] then return { 'RUN' } end",
               ""),),
        "integration/frontier/test_adopt.py::test_a_claim_that_arrives_late_takes_nothing",
    ),
    "P6": Guard(
        "a shard is adopted anew on every server run",
        (Patch(_LUA + "_guard.lua", "if m[2] ~= run then return { 'RUN' } end", ""),),
        "integration/frontier/test_adopt.py::test_after_a_restart_every_script_says_run_until_the_shard_is_adopted",
    ),
    "P6-written": Guard(
        "what was decided under one run is not written under another",
        (Patch("common/frontier/link.py",
               'if not all(one.run in ("", self.run_id) for one in calls):', "if False:"),),
        "integration/frontier/test_durability.py::test_what_was_decided_under_one_run_is_not_written_under_another",
    ),
    "P6-quiet": Guard(
        "hosts rest where last times may be lost",
        (Patch(_LUA + "adopt.lua", "now_ms(KEYS[1]) + tonumber(ARGV[6])", "0"),),
        "integration/frontier/test_adopt.py::test_on_a_new_run_that_may_have_lost_times_hosts_rest_for_one_delay",
    ),
    "P6-whole": Guard(
        "a shard half of which lies on another node is not adopted, and not missing",
        (Patch("common/frontier/client.py", "                if count:\n",
               "                if False:\n"),),
        "integration/frontier/test_redis_failover.py::test_a_failover_amid_a_migration_makes_no_shard_look_missing_or_empty",
    ),
    "P7-links": Guard(
        "in a cluster links are kept before their page is committed",
        (Patch("common/frontier/offers.py", "if self._client.is_cluster:", "if False:"),),
        "integration/frontier/test_redis_failover.py::test_links_that_no_replica_has_are_not_taken_as_kept_and_are_offered_again",
    ),
    "P7-seal": Guard(
        "a job is sealed by what is durable",
        (Patch("common/frontier/job.py",
               "        await self._client.wait_durable(self._metas)\n        again",
               "        again"),),
        "integration/frontier/test_durability.py::test_a_job_is_not_sealed_by_what_a_crash_takes_back",
    ),
    "P7-budget": Guard(
        "budget a crash brought back is not given out",
        (Patch("common/frontier/job.py",
               "args, self._looked_runs[shard])", "args)"),),
        "integration/frontier/test_durability.py::test_budget_is_not_given_out_by_what_was_seen_before_a_crash",
    ),
    "P8": Guard(
        "what was seen on one server run is not known on another",
        (Patch("worker/outlinks.py", "            self._young, self._old = set(), set()\n", ""),),
        "unit/worker/test_outlinks.py",
    ),
    "P8-taken": Guard(
        "what a former server run took is offered again",
        (Patch("common/frontier/offers.py", "if runs[shard] == run]", "]"),),
        "integration/frontier/test_durability.py::test_what_a_former_server_run_took_is_not_taken_as_kept",
    ),
    "P9": Guard(
        "a former owner's request keeps its slot",
        (Patch(_LUA + "requeue.lua", "if owner == token or owner < dead_below then",
               "if true then"),),
        "integration/frontier/test_recover.py::test_the_slot_of_a_former_owner_stays_until_its_request_is_over_and_then_one_delay",
    ),
    "P9-end": Guard(
        "after a request that is surely over a host rests for a delay",
        (Patch(_LUA + "claim.lua",
               "if delay > 0 and per_host == 1 then postpone(", "if false then postpone("),),
        "integration/frontier/test_recover.py::test_the_slot_of_a_former_owner_stays_until_its_request_is_over_and_then_one_delay",
    ),
    "P10": Guard(
        "no more pages are claimed than granted",
        (Patch(_LUA + "claim.lua", "math.min(take, allowance, room)",
               "math.min(take, room)"),),
        "integration/frontier/test_budgets.py::test_a_shard_claims_no_more_pages_than_it_was_granted",
    ),
    "P10-back": Guard(
        "only unused grant is taken back",
        (Patch(_LUA + "grant.lua", "  amount = -math.min(-amount, unused)\n", ""),),
        "integration/frontier/test_budgets.py::test_only_unused_grant_is_taken_back",
    ),
    "P10-seen": Guard(
        "a grant decided on an older look changes nothing",
        (Patch(_LUA + "grant.lua", "if ARGV[5] ~= '' and", "if false and"),),
        "integration/frontier/test_master.py::test_a_grant_decided_on_an_older_look_changes_nothing",
    ),
    "P11": Guard(
        "seeds stay parked until their offers are durable",
        (Patch("common/frontier/job.py", "if len(kept) < len(self._offered_runs):", "if False:"),
         Patch("common/frontier/job.py", "[LAYOUT_VERSION, *fence, *numbers], run)",
               "[LAYOUT_VERSION, *fence, *numbers])")),
        "integration/frontier/test_durability.py::test_seeds_that_a_crash_took_back_stay_staged",
    ),
    "P12": Guard(
        "consumers are given what is durable",
        (Patch("common/frontier/results.py",
               "if given and await self._client.wait_durable([key]) != [run]:", "if False:"),),
        "integration/frontier/test_durability.py::test_records_are_given_out_only_once_they_are_durable",
    ),
    "P13-refilled": Guard(
        "letters put back keep a shard from being sealed",
        (Patch(_LUA + "seal.lua", " or (m[6] or '0') ~= ARGV[6]", ""),
         Patch("common/frontier/job.py",
               "(look.counters, look.refilled) == (before.counters, before.refilled)", "True")),
        "integration/frontier/test_letters.py::test_a_shard_that_was_refilled_since_it_was_seen_is_not_sealed",
    ),
    "P13-commit": Guard(
        "a claim is committed once",
        (Patch(_LUA + "commit.lua", "  if mine[claim] then", "  if true then"),
         Patch(_LUA + "commit.lua", "is_paid(mine[claim])", "false")),
        "integration/frontier/test_settle.py::test_a_commit_repeated_after_a_lost_reply_changes_nothing",
    ),
    "P14": Guard(
        "permits of all together keep a host's limits",
        (Patch(_LUA + "permit.lua", "      others = others + one.slots\n", ""),),
        "integration/frontier/test_permits.py::test_random_histories_keep_every_limit",
    ),
    "P14-clock": Guard(
        "a clock that was set back stalls no host",
        (Patch(_LUA + "claim.lua",
               "  redis.call('HINCRBY', KEYS[1], 'skew', clock - now)\n  now = clock\n", ""),),
        "integration/frontier/test_claim.py::test_a_clock_that_was_set_back_stops_no_host",
    ),
    "P15": Guard(
        "one lock that is held does not keep the others from being taken",
        (Patch(_COORD + "lock.py",
               "while pending := [put for name, put in puts.items() if name not in found]:",
               "for pending in [list(puts.values())]:"),),
        "integration/coord/test_lock.py::test_many_tasks_are_taken_at_once_around_those_that_are_held",
    ),
    "P16": Guard(
        "scripts refuse another layout of the data",
        (Patch(_LUA + "adopt.lua", "if m[1] ~= ARGV[1] then return { 'VERSION', m[1] } end",
               ""),),
        "integration/frontier/test_adopt.py::test_a_shard_of_another_layout_is_refused_to_everyone_and_left_as_it_is",
    ),
    "P17": Guard(
        "a server that may evict keys is refused",
        (Patch("common/frontier/client.py", 'if info.eviction != "noeviction":', "if False:"),),
        "integration/frontier/test_client.py::test_a_server_that_may_evict_keys_is_refused",
    ),
    "P17-owners": Guard(
        "owners ended on purpose say nothing against a URL",
        (Patch("common/frontier/owner.py", "is_due=owner >= dead_below", "is_due=True"),),
        "integration/frontier/test_recover.py::test_owners_ended_on_purpose_are_not_counted",
    ),
    "P17-suspects": Guard(
        "being in flight beside others makes a URL a suspect and no more",
        (Patch("common/frontier/owner.py",
               "owners = max(known.owners, min(known.owners + 1, SUSPECT_OWNERS))",
               "owners = known.owners + 1"),),
        "integration/frontier/test_recover.py::test_owners_make_a_suspect_and_only_what_is_written_for_it_more",
    ),
    "P17-alone": Guard(
        "the last try of a URL is the only page in its process",
        (Patch("worker/capacity.py",
               "if self._loners and not self._is_alone and self.in_use <= len(self._loners):",
               "if self._loners and not self._is_alone:"),),
        "unit/worker/test_capacity.py::test_who_is_alone_is_the_only_one_at_work_and_then_all_go_on",
    ),
    "P18-depth": Guard(
        "a link that is too deep is not offered",
        (Patch("worker/outlinks.py", "if self._max_depth is not None and depth > self._max_depth:",
               "if False:"),),
        "unit/worker/test_outlinks.py",
    ),
    "P18-first": Guard(
        "depth and referrer are those of the first admission",
        (Patch(_LUA + "offer.lua", "if not is_seen(n) and not taken[print] then",
               "if not taken[print] then"),),
        "integration/frontier/test_offer.py::test_referrer_and_depth_of_the_first_offer_stay",
    ),
    "P18-trim": Guard(
        "results are dropped behind every group only",
        (Patch(_LUA + "trim.lua",
               "if not keep or ms < keep_ms or (ms == keep_ms and seq < keep_seq) then",
               "if true then"),),
        "integration/frontier/test_results.py::test_only_what_every_group_has_acknowledged_is_trimmed",
    ),
    "P18-sink": Guard(
        "what a sink wrote behind its checkpoint is cut",
        (Patch("crawlctl/sink.py", "    file.truncate(offset)\n", ""),),
        "unit/cli/test_sink.py",
    ),
}  # fmt: skip
