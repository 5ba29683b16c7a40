"""What every program's process does alike."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.daemon import Nsqadmin, Nsqd, Nsqlookupd

SERVE = """
import asyncio
from nsquark.cli import process

async def main():
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    server.close()
    await server.wait_closed()

process.run(main())
"""


def test_a_program_whose_standard_files_are_closed_ends_well() -> None:
    # Its first sockets would be numbers 0 to 2, and uvloop aborts the process when it closes one of these.
    done = subprocess.run(["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, SERVE], timeout=20)
    assert done.returncode == 0


# ---- hangups


def test_a_hangup_ends_no_daemon(tmp_path: Path) -> None:
    for daemon in (Nsqd(tmp_path / "data"), Nsqlookupd(), Nsqadmin("--lookupd-http-address=127.0.0.1:1")):
        with daemon.start():
            daemon.process.send_signal(signal.SIGHUP)
            daemon.wait_for_line("SIGHUP: there (is nothing|are no certificates) to read again")
            assert daemon.stop() == 0
