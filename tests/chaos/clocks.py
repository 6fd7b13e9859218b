"""Wall clocks of single processes that can be stepped, by a library preloaded into them.

The library is compiled when it is first needed; without a C compiler on Linux the runs that need it
are not possible, and say so. (libfaketime would do the same, but its present release fails inside
Redis: its reading of the clock and the memory allocator call each other.)
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")


def is_possible() -> bool:
    """Tell whether clocks can be stepped on this machine."""
    return sys.platform == "linux" and shutil.which("cc") is not None


class Clocks:
    """The clocks of one laboratory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = folder / "clock.so"
        folder.mkdir(parents=True, exist_ok=True)
        if not is_possible():
            raise RuntimeError("NO CC: stepping clocks needs Linux and a C compiler (cc) on PATH")
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-o", str(self._library), str(_SOURCE)], check=True
        )

    def environment(self, name: str) -> dict[str, str]:
        """Return what a process with a clock of its own is to be started with."""
        self.step(name, 0.0)
        return {"LD_PRELOAD": str(self._library), "CLOCK_OFFSET_FILE": str(self._file(name))}

    def step(self, name: str, seconds: float) -> None:
        """Set how far the clock is off."""
        raw = struct.pack("=q", int(seconds * 1e9))
        path = self._file(name)
        if path.exists():
            with path.open("r+b") as file:  # the same file: processes have it mapped
                file.write(raw)
        else:
            path.write_bytes(raw)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.offset"
