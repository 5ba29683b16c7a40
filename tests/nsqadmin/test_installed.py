"""Without the extra [admin], nsqadmin says in a line what to install, and `nsquark up` runs without it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.tools.people.command import environment
from tests.tools.people.commands.test_up import PORTS

WITHOUT = "import sys; sys.modules['starlette'] = sys.modules['uvicorn'] = None; sys.argv = {argv!r}\n"


def without_extra(module: str, *argv: str) -> subprocess.Popen[str]:
    """The program as it runs where two of its dependencies are not installed."""
    code = WITHOUT.format(argv=[module, *argv]) + f"from {module}.__main__ import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip


def test_nsqadmin_says_what_to_install() -> None:
    process = without_extra("nsquark.nsqadmin", "--nsqd-http-address=127.0.0.1:1")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert stderr.endswith("FATAL: nsqadmin needs starlette, uvicorn: pip install 'nsquark[admin]'\n")
    assert stderr.count("\n") == 1


def test_its_flags_can_be_asked_for_all_the_same() -> None:
    process = without_extra("nsquark.nsqadmin", "--help")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "-lookupd-http-address" in stderr


def test_the_servers_run_without_it(tmp_path: Path) -> None:
    process = without_extra("nsquark.tools.people", "up", "--json", f"--data-path={tmp_path}", *PORTS)
    assert process.stdout is not None
    at = json.loads(process.stdout.readline())
    assert at["admin_http"] == ""
    assert at["nsqd_http"]
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "WARNING: nsqadmin needs starlette, uvicorn" in stderr
