"""The private environment of a checkout, which is not to be replaced under a process of ours.

``scripts/`` make it, and install into it anew when the checkout has changed. What runs from it
shares a lock there, and an installation takes it for itself: it is refused while a crawl goes on,
however that was started. Other environments have no such lock.
"""

from __future__ import annotations

import fcntl
import os
import sys
from functools import cache
from pathlib import Path
from typing import Final

from common.model.errors import RefusedError

LOCK: Final = "in-use.lock"
"""As ``scripts/_env.py`` names it."""


@cache
def hold() -> None:
    """Keep the environment as it is until this process ends.

    Raises:
        RefusedError: it is being installed into.
    """
    try:
        number = os.open(Path(sys.prefix, LOCK), os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        # Held by the descriptor, which is never closed and which no child inherits.
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(number)
        raise RefusedError(
            f"crawlctl is being installed anew into {sys.prefix}; try again when that has ended"
        ) from None
