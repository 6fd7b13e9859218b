"""Draws hostile input for the readers of the *installed* packages until the time is over."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUND = 1000
"""Examples of one reader before the next one's turn."""

# This folder must not be imported from: pytest has a package of the name of a script here.
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != ROOT / "scripts"]
sys.path.append(str(ROOT))
os.environ["PYTHONSAFEPATH"] = "1"


def main(arguments: list[str]) -> int:
    """Fuzz for so many seconds; a failure is shown with its smallest input."""
    from hypothesis import HealthCheck, given, settings  # noqa: PLC0415 - the path is set first
    from hypothesis import strategies as st  # noqa: PLC0415 - the path is set first

    from tests.support.arguments import Parser, real  # noqa: PLC0415 - the path is set first
    from tests.support.fuzzing import CHECKS  # noqa: PLC0415 - the path is set first

    parser = Parser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("seconds", type=real(), nargs="?", default=3600.0, help="(3600)")
    parser.add_argument("reader", nargs="*", help=", ".join(CHECKS))
    asked = parser.parse_args(arguments)
    if unknown := set(asked.reader) - set(CHECKS):
        parser.error(f"there is no reader {min(unknown)!r} (choose from {', '.join(CHECKS)})")
    seconds, names = asked.seconds, asked.reader or list(CHECKS)
    until, drawn = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        for name in names:
            rules = settings(
                max_examples=ROUND, deadline=None, database=None,
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            rules(given(data=st.data())(CHECKS[name]))()
            drawn += ROUND
        print(f"{drawn} examples, {max(0, until - time.monotonic()):.0f} s to go", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
