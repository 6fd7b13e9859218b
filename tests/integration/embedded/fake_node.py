"""Run by tests in place of ``crawlctl``: a node that lives with its parent and leaves on SIGTERM.

It begins when it is given its settings: one line of JSON on its standard input.

``--mode deaf`` ignores SIGTERM, ``--mode die`` ends with an error at once, ``--mode leave`` ends
with 0 at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading


def watch_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


arguments = sys.argv[1:]
mode = arguments[arguments.index("--mode") + 1] if "--mode" in arguments else ""
print(arguments, file=sys.stderr, flush=True)
if mode == "die":
    sys.exit("the fake node was told to die")
if mode == "leave":
    sys.exit(0)
given = json.loads(sys.stdin.readline())
print(given["CRAWLCTL_ETCD"], given["CRAWLCTL_REDIS"], file=sys.stderr, flush=True)
threading.Thread(target=watch_parent, daemon=True).start()
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", file=sys.stderr, flush=True)
while True:
    signal.pause()
