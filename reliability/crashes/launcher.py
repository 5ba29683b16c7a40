"""Has nsqd's modules loaded, and forks an nsqd for each request.

`python -m reliability.crashes.launcher FD [MUTANT]`: most of the time of a start is the import of modules. A
fork has them. Otherwise it is nsqd as the command `nsqd` starts it. FD is a socket of packets. `{"argv":
[…]}` comes with the descriptor for stderr and is answered with the process id. `{"wait": PID}` is answered
with the exit status once the process has ended. At the end of the socket all processes are killed.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Callable
from typing import NoReturn

from . import mutants


def run(nsqd: Callable[[], int], argv: list[str], stderr: int, requests: socket.socket) -> NoReturn:
    """Be nsqd."""
    status = 1
    try:
        requests.close()
        os.dup2(stderr, 2)
        os.close(stderr)
        random.seed()
        sys.argv = ["nsqd", *argv]
        status = nsqd()
    finally:
        os._exit(status)


def main() -> None:
    if len(sys.argv) > 2:
        mutants.become(sys.argv[2])
    import uvloop  # noqa: F401 - nsqd imports it when it starts

    from nsquark.nsqd import __main__ as nsqd

    requests = socket.socket(fileno=int(sys.argv[1]))
    running: set[int] = set()
    gc.freeze()
    try:
        while True:
            data, descriptors, _, _ = socket.recv_fds(requests, 1 << 16, 1)
            if not data:
                break
            request = json.loads(data)
            if "argv" in request:
                answer = os.fork()
                if answer == 0:
                    run(nsqd.main, request["argv"], descriptors[0], requests)
                running.add(answer)
                os.close(descriptors[0])
            else:
                _, status = os.waitpid(request["wait"], 0)
                running.discard(request["wait"])
                answer = os.waitstatus_to_exitcode(status)
            requests.send(b"%d" % answer)
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
