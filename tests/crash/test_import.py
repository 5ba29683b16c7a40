"""An import of Go's disk queues that ends anywhere goes on, and every channel gets its messages once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon import PATIENCE, Nsqd
from tests.nsqd.importing.go_directory import files_of_go, fill, is_whole_import

from .test_after_a_crash import everything

PARTS = 2
# nsqd, but its import waits at each topic until a signal comes
WAITING = """
import sys
from nsquark.nsqd.importing import takeover, topic_import
topic_import.BATCH = 300
real = takeover.Takeover._build_topic

def build_topic(self, *args):
    print("building", file=sys.stderr, flush=True)
    self._stop.wait(60)
    return real(self, *args)

takeover.Takeover._build_topic = build_topic
from nsquark.nsqd.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", ["kill", "power-cut"])
def test_an_import_that_is_killed_at_any_call_goes_on(tmp_path: Path, kind: str, part: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.killed_imports", tmp_path, kind, str(part), str(PARTS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{kind}: every {PARTS}th call up to ")


async def test_what_is_imported_is_delivered_once(tmp_path: Path) -> None:
    path = tmp_path / "data"
    expected = fill(path)
    own = expected.pop("lonely")
    with Nsqd(path).start() as nsqd:
        assert is_whole_import(path)
        nsqd.wait_for_line("IMPORT: complete: 2 topics")
        nsqd.kill()  # nothing of it may come again, or be gone
        nsqd.restart()
        for queue, messages in expected.items():
            topic, channel = queue.split(":")
            found = await everything(nsqd, topic, channel)
            assert sorted((each.body, each.attempts) for each in found) == sorted(
                (body, attempts + 1) for body, attempts in messages
            )
            assert len({each.id for each in found}) == len(messages)
        found = await everything(nsqd, "lonely", "first")
        assert [each.body for each in found] == [body for body, _ in own]


async def test_a_signal_ends_an_import_and_the_next_start_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "data"
    expected = fill(path)
    command = [sys.executable, "-c", WAITING, f"--data-path={path}", "--tcp-address=127.0.0.1:0"]
    nsqd = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert nsqd.stderr is not None
        lines = []
        while not lines or lines[-1] != "building\n":
            lines.append(nsqd.stderr.readline())
            assert lines[-1], lines
        nsqd.send_signal(signal.SIGTERM)
        rest = nsqd.stderr.read()
        assert nsqd.wait(PATIENCE) == 0
    finally:
        nsqd.kill()
        nsqd.wait()
    assert "IMPORT: interrupted; the next start goes on with it" in rest
    assert "listening" not in rest
    assert files_of_go(path)
    with Nsqd(path).start() as again:
        again.wait_for_line("IMPORT: going on with an import that was interrupted")
        found = await everything(again, "orders", "mail")
        assert len(found) == len(expected["orders:mail"])
