#!/usr/bin/env python3
"""Pages a second of one worker process on one site, politeness off, beside other programs.

usage: crawl_rate.py URL PAGES [--rounds N] [--beside 'NAME=COMMAND' ...]

Each round runs ``crawlctl crawl`` (one worker) and then every COMMAND, whose last line must be
JSON with ``pages_per_s``. The figure of each is its median over the rounds; the ratio to ours is
taken round by round, since a machine's speed drifts. The rate counts from the first finished page
to the last, as the other programs' do: starting the servers is reported apart.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path


def ours(url: str, pages: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        options = ["--workers", "1", "--delay", "0", "--per-host", "32", "--max-pages", str(pages)]
        command = [sys.executable, "-m", "crawlctl", "crawl", url, "-o", folder, "--allow-private"]
        started = time.time()
        subprocess.run([*command, *options, "-q"], check=True)
        times = [
            datetime.fromisoformat(record["fetched_at"]).timestamp()
            for record in map(json.loads, (Path(folder) / "results.jsonl").open())
            if record["outcome"] == "fetched"
        ]
    return {
        "pages": len(times),
        "pages_per_s": round((len(times) - 1) / (max(times) - min(times)), 1),
        "first_page_after_s": round(min(times) - started, 2),
    }


def theirs(command: str) -> dict[str, float]:
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("pages", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", action="append", default=[], metavar="NAME=COMMAND")
    arguments = parser.parse_args()
    others = dict(pair.split("=", 1) for pair in arguments.beside)
    rates: dict[str, list[float]] = {"crawlctl": [], **{name: [] for name in others}}
    for round_number in range(arguments.rounds):
        figures = {"crawlctl": ours(arguments.url, arguments.pages)}
        figures |= {name: theirs(command) for name, command in others.items()}
        for name, figure in figures.items():
            rates[name].append(figure["pages_per_s"])
            print(json.dumps({"round": round_number, "program": name, **figure}), flush=True)
    for name, values in rates.items():
        ratios = [a / b for a, b in zip(rates["crawlctl"], values, strict=True)]
        median = statistics.median(values)
        print(f"{name}: {median:.1f} pages/s, ours is {statistics.median(ratios):.2f}x of it")


if __name__ == "__main__":
    main()
