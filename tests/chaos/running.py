"""Runs one seed: laboratory, schedule, end, history, verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.chaos import faults
from tests.chaos.directed import SCENARIOS, SUBMITS, Scenario
from tests.chaos.graph import generated
from tests.chaos.history import Fault, History
from tests.chaos.judge import Verdict, judged
from tests.chaos.lab import Lab, Setup, laboratory
from tests.chaos.schedule import PROFILES, Step, schedule

PAGES = 30
"""Pages a host: the crawl then takes somewhat longer than faults are put in."""
END_S = 100.0
"""How long after the last fault the job may take to end; a loaded machine is slow."""


async def run_seed(seed: int, profile: str, folder: Path) -> tuple[History, Verdict]:
    """Run a seed and judge it; the history is kept in ``folder``."""
    chosen = PROFILES[profile]
    setup = Setup(
        graph=generated(seed, pages=PAGES),
        appendfsync=chosen.appendfsync,
        clocks=chosen.clocks,
        users=chosen.users,
        options=dict(chosen.options),
    )
    async with laboratory(setup, folder) as lab:
        await inject(lab, schedule(seed, chosen))
        await lab.ended(within_s=END_S)
        history = await lab.history(seed=seed, profile=profile)
    keep(history, folder)
    return history, judged(history)


async def run_scenario(scenario: Scenario, folder: Path, **more: Any) -> tuple[History, Verdict]:
    """Run a directed schedule and judge it."""
    name = next(name for name, one in SCENARIOS.items() if one is scenario)
    async with laboratory(scenario.setup(**more), folder, submits=name not in SUBMITS) as lab:
        await scenario.act(lab)
        await lab.ended(within_s=scenario.end_s)
        history = await lab.history(seed=0, profile=name)
    keep(history, folder)
    return history, judged(history)


def keep(history: History, folder: Path) -> None:
    (folder / "history.json").write_bytes(msgspec.json.encode(history))


def kept(folder: Path) -> History:
    return msgspec.json.decode((folder / "history.json").read_bytes(), type=History)


async def inject(lab: Lab, steps: Sequence[Step]) -> None:
    """Carry out a schedule; returns when the last fault is healed."""
    begin = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for step in steps:
            group.create_task(_carry_out(lab, step, begin))


async def _carry_out(lab: Lab, step: Step, begin: float) -> None:
    await asyncio.sleep(max(0.0, begin + step.at_s - time.monotonic()))
    fault = faults.ALL[step.name](lab, step.pick)
    started = time.monotonic()
    try:
        await fault.inject()
        await asyncio.sleep(step.lasts_s)
    finally:
        await fault.heal()
        lab.faults.append(Fault(step.name, fault.target, started, time.monotonic(), fault.damages))
