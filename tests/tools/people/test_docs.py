"""The blocks of docs/nsquark.md are pasted into a shell, one after the other, beside `nsquark up`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from nsquark.tools.people.flags.settings import KEYS
from tests.tools.people.command import environment
from tests.tools.people.commands.test_up import up

PAGE = (Path(__file__).parents[3] / "docs" / "nsquark.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


def test_every_block_works_when_pasted(tmp_path: Path) -> None:
    first, *others = blocks("sh")
    assert first == "nsquark up\n"
    with up(tmp_path / "data", "--", "--retention-time=1h") as (_, at):
        environ = environment(
            PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            NSQUARK_NSQD_HTTP=at["nsqd_http"],
            NSQUARK_NSQD_TCP=at["nsqd_tcp"],
        )
        done = subprocess.run(
            ["bash", "-e", "-c", "\n".join(others)],
            capture_output=True, text=True, env=environ, cwd=tmp_path, timeout=100,
        )  # fmt: skip
    assert done.returncode == 0, done
    assert '{"id": 2}' in done.stdout
    assert "replayed 2 messages of topic 'orders' into 'orders-again'" in done.stderr


def test_the_file_has_settings_that_exist() -> None:
    (text,) = blocks("toml")
    assert tomllib.loads(text).keys() <= set(KEYS)
    named = set(re.findall(r"NSQUARK_([A-Z_]+)`", PAGE)) - {"CONFIG"}
    assert {name.lower() for name in named} <= set(KEYS)
