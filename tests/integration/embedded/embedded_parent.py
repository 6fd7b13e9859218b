"""Run by tests: claims a folder, starts the stack and two fake nodes, drains on SIGINT.

Prints the process ids of all it started as one JSON line, then one word a step of its end.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

from common.embedded.folder import Folder
from common.embedded.nodes import Nodes
from common.embedded.probes import Answer, probe_redis
from common.embedded.stack import Stack

FAKE_NODE = (sys.executable, str(Path(__file__).with_name("fake_node.py")))


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    with Folder.claim(sys.argv[1]) as folder:
        stack = Stack(folder)
        nodes = Nodes(folder, cluster="test", workers=1, program=FAKE_NODE)
        await nodes.start()
        endpoints = await stack.start()
        nodes.begin(endpoints)
        print(json.dumps(stack.pids | nodes.pids), flush=True)
        await stop.wait()
        password, _, port = endpoints.redis.removeprefix("redis://:").partition("@127.0.0.1:")
        answer = await probe_redis(int(port.partition("/")[0]), password)
        print("servers live" if answer is Answer.READY else "servers dead", flush=True)
        killed = await nodes.drain(timeout_s=5)
        print("killed" if killed else "drained", flush=True)
        await stack.stop()


asyncio.run(main())
