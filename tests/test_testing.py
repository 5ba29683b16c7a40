"""The pytest plugin, used as the tests of a user would use it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nsquark.testing import Nsqd

THEIR_TEST = """
import nsquark

async def _bodies(address, count):
    bodies = []
    async with nsquark.Consumer("t", "ch", nsqd=address) as consumer:
        async for message in consumer:
            async with message:
                bodies.append(message.body)
            if len(bodies) == count:
                return bodies

async def test_it_runs(nsqd):
    async with nsquark.Producer(nsqd.tcp_address) as producer:
        await producer.publish("t", b"x")
    assert await _bodies(nsqd.tcp_address, 1) == [b"x"]

async def test_it_is_empty_again(nsqd):
    assert (await nsquark.NsqdHttp(nsqd.http_address).stats())["topics"] == []
"""


def test_a_fixture_for_others(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["nsquark.testing"]\n')
    (tmp_path / "test_theirs.py").write_text(THEIR_TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", str(tmp_path)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_flags_are_passed_on_and_what_is_wrong_is_said() -> None:
    with Nsqd("--msg-timeout=1s") as nsqd:
        assert nsqd.tcp_address != nsqd.http_address
    with pytest.raises(RuntimeError, match="no-such-flag"):
        Nsqd("--no-such-flag").start()


def test_the_recipe_of_the_docs_works_as_pasted(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "client.md").read_text()
    section = page.partition("\n## Testing code that uses it\n")[2].partition("\n## ")[0]
    conftest, test = re.findall(r"```python\n(.*?)```", section, re.S)
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_billing.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
