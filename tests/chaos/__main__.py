"""``scripts/chaos``: seeds one after the other or side by side, a line a seed, totals at the end.

A seed decides the graph, the faults, their targets and times. Exit code 1 after any violation; the
evidence of a failed seed (logs, history, request log) stays in its folder and can be judged again
with ``--judge``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from common.frontier import FrontierClient, RedisOptions
from tests.chaos.completion import runs as completion_runs
from tests.chaos.directed import SCENARIOS
from tests.chaos.guards import GUARDS, without
from tests.chaos.history import History
from tests.chaos.judge import judged
from tests.chaos.mutants import MUTANTS, mutated
from tests.chaos.running import kept, run_scenario, run_seed
from tests.chaos.schedule import PROFILES, schedule
from tests.support.arguments import Parser, folder, span, whole
from tests.support.servers import dying_with_parent, start_redis

_BLOCK = 250
PROGRAM = Path(__file__).resolve().parents[2] / "scripts" / "_chaos.py"
_SHOWN = (
    "faults",
    "takeovers",
    "masters",
    "refetches",
    "lost",
    "twice",
    "stale",
    "impolite",
    "other",
)


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = Parser(prog="scripts/chaos", description="Crawls under faults.")
    parser.add_argument(
        "--seeds", type=span, default="1-20", metavar="FROM-TO", help="[default: 1-20]"
    )
    parser.add_argument("--profile", default="all", choices=sorted(PROFILES))
    parser.add_argument("--jobs", type=whole(), default=1, metavar="N", help="seeds side by side")
    parser.add_argument("--resume", type=_notes, metavar="FILE", help="keep results there; go on")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where evidence of failures goes")
    parser.add_argument("--keep-all", action="store_true", help="keep the folder of every seed")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--judge", type=_kept, metavar="DIR", help="judge a kept folder again")
    for name, choices, metavar, says in (
        ("--mutants", MUTANTS, "NAME", "take guards out: the judge must notice"),
        ("--directed", SCENARIOS, "NAME", "directed schedules on the crawler as it is"),
        ("--guards", GUARDS, "RULE", "take guards out: the tests named must fail"),
    ):
        kinds.add_argument(name, nargs="*", choices=list(choices), metavar=metavar, help=says)
    kinds.add_argument(
        "--completion", type=span, metavar="FROM-TO", help="randomised runs of the end of a job"
    )
    kinds.add_argument("--plan", action="store_true", help="print the schedules, run nothing")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(given)


def _kept(text: str) -> History:
    try:
        return kept(folder(text))
    except (OSError, msgspec.DecodeError) as error:
        raise argparse.ArgumentTypeError(f"no history is kept in {text!r} ({error})") from error


def _notes(text: str) -> Path:
    """Return the file of results, of which each line must be one; a new one is empty."""
    path = Path(text)
    try:
        path.touch()
        for line in path.read_text().splitlines():
            json.loads(line)
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no file of results ({error})") from error
    return path


def _one(seed: int, profile: str, folder: Path) -> dict[str, Any]:
    began = time.monotonic()
    history, verdict = asyncio.run(run_seed(seed, profile, folder))
    return {
        "run": f"{profile} {seed}",
        "seed": seed,
        "profile": profile,
        "good": not verdict.violations,
        "seconds": round(time.monotonic() - began, 1),
        "schedule": [str(step) for step in schedule(seed, PROFILES[profile])],
        "targets": [f"{fault.name} {fault.target}" for fault in history.faults],
        "totals": {name: verdict.totals[name] for name in _SHOWN},
        "violations": [list(violation) for violation in verdict.violations],
    }


async def _run(seed: int, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run a seed in a process of its own: nothing of it can reach the next one."""
    process = await asyncio.create_subprocess_exec(
        *dying_with_parent(), sys.executable, str(PROGRAM),
        "--one", str(seed), "--profile", arguments.profile,
        "--keep", str(folder),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    if process.returncode == 0:
        result: dict[str, Any] = json.loads(out)
        return result
    (folder / "lab.err").write_bytes(err)
    return {
        "run": f"{arguments.profile} {seed}",
        "seed": seed, "profile": arguments.profile, "good": False, "seconds": 0.0,
        "schedule": [str(step) for step in schedule(seed, PROFILES[arguments.profile])],
        "targets": [], "totals": dict.fromkeys(_SHOWN, 0) | {"other": 1},
        "violations": [["laboratory", err.decode(errors="replace")[-600:]]],
    }  # fmt: skip


def _line(result: dict[str, Any]) -> str:
    verdict = "FAILED" if result["violations"] else "ok"
    figures = " ".join(f"{name}={result['totals'][name]}" for name in _SHOWN)
    said = [f"    {kind}: {text}" for kind, text in result["violations"][:12]]
    head = f"seed {result['seed']} {verdict} {result['seconds']} s {figures} "
    return "\n".join([head + "[" + " ".join(result["schedule"]) + "]", *said])


def _note(path: Path, result: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(result) + "\n")


async def _block(arguments: argparse.Namespace) -> int:
    done: dict[int, dict[str, Any]] = {}
    if arguments.resume:
        lines = arguments.resume.read_text().splitlines()
        done = {
            one["seed"]: one
            for one in map(json.loads, lines)
            if one.get("profile") == arguments.profile
        }
    seeds = arguments.seeds
    waiting = iter([seed for seed in seeds if seed not in done])
    evidence = arguments.keep or Path(tempfile.mkdtemp(prefix="chaos-"))

    async def work() -> None:
        for seed in waiting:
            folder = evidence / f"{arguments.profile}-{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            result = done[seed] = await _run(seed, arguments, folder)
            print(_line(result), flush=True)
            if arguments.resume:
                _note(arguments.resume, result)
            if result["violations"]:
                print(f"    evidence: {folder}", flush=True)
            elif not arguments.keep_all:
                shutil.rmtree(folder)

    await asyncio.gather(*(work() for _ in range(arguments.jobs)))
    ran = [done[seed] for seed in seeds if seed in done]
    totals: Counter[str] = Counter()
    for result in ran:
        totals.update(result["totals"])
    failed = [result["seed"] for result in ran if result["violations"]]
    print(
        f"{len(ran)} seeds of profile {arguments.profile}, {len(failed)} failed {failed or ''}: "
        + ", ".join(f"{name} {totals[name]}" for name in _SHOWN)
    )
    return 1 if failed else 0


async def _completion(seeds: list[int], resume: Path | None, known: list[str]) -> int:
    """Run the end of a job many times, in blocks that ``--resume`` remembers."""
    done: set[int] = set()
    totals: Counter[str] = Counter()
    for one in map(json.loads, known):
        done.update(range(one["first"], one["last"] + 1))
        totals.update(one["wrong"])
    with tempfile.TemporaryDirectory() as folder:
        server = start_redis(Path(folder), appendfsync="no")
        client = FrontierClient(RedisOptions(urls=(server.url,)))
        await client.open()
        try:
            for start in range(seeds[0], seeds[-1] + 1, _BLOCK):
                block = [seed for seed in seeds[start - seeds[0] :][:_BLOCK] if seed not in done]
                if not block:
                    continue
                wrong = await completion_runs(client, block)
                totals.update(wrong)
                done.update(block)
                print(f"runs {block[0]}-{block[-1]}: {dict(wrong) or 'ok'}", flush=True)
                if resume:
                    _note(resume, {"first": block[0], "last": block[-1], "wrong": wrong})
        finally:
            await client.close()
            server.kill()
    print(
        f"{len(done)} runs: {totals['early finish']} early finishes, {totals['hang']} hangs, "
        f"{totals['twice']} with a result twice"
    )
    return 1 if totals else 0


def _all_of(kind: str, names: list[str], arguments: argparse.Namespace) -> int:
    """Run mutants, or directed schedules, one after the other; print a table."""
    evidence = arguments.keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    failed = []
    for name in names:
        folder = evidence / f"{kind}-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        more = {}
        if kind == "mutant":
            mutant = MUTANTS[name]
            title, scenario = mutant.guard, SCENARIOS[mutant.scenario]
            more["tree"] = mutated(mutant.patches, folder / "tree")
        else:
            title, scenario = SCENARIOS[name].says.split(".")[0], SCENARIOS[name]
        began = time.monotonic()
        _, verdict = asyncio.run(run_scenario(scenario, folder, **more))
        kinds = {violation.kind for violation in verdict.violations}
        good = bool(kinds & MUTANTS[name].kinds) if kind == "mutant" else not kinds
        failed += [] if good else [name]
        said = "; ".join(f"{one.kind}: {one.text}" for one in verdict.violations[:1]) or "nothing"
        word = {True: "ok", False: "FAILED"}[good]
        seconds = time.monotonic() - began
        print(f"{word:6} {name:17} {seconds:5.1f} s  {title}\n       judge: {said}", flush=True)
        if arguments.resume:
            result = {"run": f"{kind} {name}", "good": good, "violations": verdict.violations}
            _note(arguments.resume, result)
        if good and arguments.keep is None:
            shutil.rmtree(folder)
    print(f"{len(names)} of {kind}, {len(failed)} failed {' '.join(failed)}")
    return 1 if failed else 0


def _guards(rules: list[str], arguments: argparse.Namespace) -> int:
    """Take out the guard of each rule; print what its test said."""
    evidence = arguments.keep or Path(tempfile.mkdtemp(prefix="guards-"))
    unnoticed = []
    for rule in rules:
        folder = evidence / rule
        shutil.rmtree(folder, ignore_errors=True)
        began = time.monotonic()
        outcome = without(GUARDS[rule], folder)
        word = {True: "ok", False: "FAILED"}[outcome.is_noticed]
        seconds = time.monotonic() - began
        print(
            f"{word:6} {rule:13} {seconds:5.1f} s  without: {GUARDS[rule].says}\n"
            f"       {GUARDS[rule].tests}: {outcome.said}",
            flush=True,
        )
        unnoticed += [] if outcome.is_noticed else [rule]
        if outcome.is_noticed and arguments.keep is None:
            shutil.rmtree(folder)
    print(f"{len(rules)} guards taken out, {len(unnoticed)} unnoticed {' '.join(unnoticed)}")
    return 1 if unnoticed else 0


def main(given: list[str] | None = None) -> int:
    arguments = _arguments(given)
    if arguments.one is not None:
        print(json.dumps(_one(arguments.one, arguments.profile, arguments.keep)))
        return 0
    if arguments.judge:
        verdict = judged(arguments.judge)
        for violation in verdict.violations:
            print(f"{violation.kind}: {violation.text}")
        print(dict(verdict.totals))
        return 1 if verdict.violations else 0
    if arguments.completion:
        resume: Path | None = arguments.resume
        known = resume.read_text().splitlines() if resume else []
        return asyncio.run(_completion(arguments.completion, resume, known))
    if arguments.mutants is not None:
        return _all_of("mutant", arguments.mutants or list(MUTANTS), arguments)
    if arguments.guards is not None:
        return _guards(arguments.guards or list(GUARDS), arguments)
    if arguments.directed is not None:
        return _all_of("directed", arguments.directed or list(SCENARIOS), arguments)
    if arguments.plan:
        for seed in arguments.seeds:
            steps = schedule(seed, PROFILES[arguments.profile])
            print(seed, " ".join(map(str, steps)))
        return 0
    return asyncio.run(_block(arguments))


if __name__ == "__main__":
    sys.exit(main())
