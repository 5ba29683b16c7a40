"""What every daemon's `main` does alike, as a process."""

import signal
import subprocess
import sys

PROGRAM = """
import sys
from dataclasses import dataclass, field
from nsquark.cli.daemon import run_daemon
from nsquark.cli.flags import StartError

@dataclass
class Options:
    version: bool = False
    log_level: str = "info"
    log_format: str = "text"
    log_prefix: str = "[probe] "
    warnings: list = field(default_factory=list)

def parse(argv):
    return Options(version="--version" in argv, warnings=["old flag"] if "--old" in argv else [])

def prepare(options):
    if "--refused" in sys.argv:
        raise StartError("no such thing")
    async def serve():
        return "--failed" not in sys.argv
    return serve

sys.exit(run_daemon("probe", parse, prepare))
"""


def run(*flags: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *flags], capture_output=True, text=True, timeout=20)
    return done.returncode, done.stdout, done.stderr


def test_the_version_is_told_before_anything_is_checked() -> None:
    status, stdout, stderr = run("--version", "--refused")
    assert (status, stderr) == (0, "")
    assert stdout.startswith("probe v1.3.0 (built w/nsquark-")


def test_the_exit_status_says_how_it_ended() -> None:
    assert run()[0] == 0
    assert run("--failed")[0] == 1
    status, _, stderr = run("--refused")
    assert status == 1
    assert stderr.startswith("[probe] ")
    assert stderr.endswith(" FATAL: no such thing\n")


def test_warnings_of_the_command_line_are_logged_behind_the_version() -> None:
    _, _, stderr = run("--old")
    first, second = stderr.splitlines()
    assert " INFO: probe v1.3.0 " in first
    assert second.endswith(" WARNING: old flag")


def test_a_server_stops_at_the_first_signal() -> None:
    program = """
import asyncio, sys
from nsquark.cli import process
from nsquark.cli.daemon import serve_until_signal

class Server:
    async def start(self):
        print("started", flush=True)
    async def stop(self):
        print("stopped", flush=True)

process.run(serve_until_signal(Server))
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "stopped\n"
        assert process.wait(20) == 0
