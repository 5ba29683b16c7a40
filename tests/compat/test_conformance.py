"""Every case of the conformance kit against our nsqd: conversations as NSQ 1.3.0 has them.

Most cases wait for something, so they all run at once, in threads; each test only looks at how its own ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.compat.conformance import run
from tests.daemon import Nsqd

CASES_FILE = Path(__file__).parent / "conformance" / "nsqd.json"
KIT = run.load(CASES_FILE)
CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in KIT["cases"]}
PATIENCE = 3.0  # times the time limits of the kit, which are those of an idle machine
LATER = {"deflate", "snappy"}

Outcomes = dict[str, "Future[str | None]"]


def is_later(case: dict[str, Any]) -> bool:
    """Whether the case needs what a later issue brings."""
    return bool(LATER.intersection(case.get("tags", ())) or case.get("needs"))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    """The outcome of every case that was selected, once it has run."""
    selected = {
        item.callspec.params["name"] for item in request.session.items if item.module is request.module
    }
    names = [name for name in CASES if name in selected and not is_later(CASES[name])]
    # the long ones first, so that the others run meanwhile
    names.sort(key=lambda name: -CASES[name].get("timeout_ms", run.DEFAULT_TIMEOUT_MS))
    shared = [name for name in names if not CASES[name].get("exclusive")]
    alone = [name for name in names if CASES[name].get("exclusive")]
    stamp = os.urandom(4).hex()
    with Nsqd(tmp_path_factory.mktemp("nsqd"), *KIT["flags"]).start() as nsqd:
        targets = run.Targets(
            SimpleNamespace(
                nsqd_tcp=nsqd.tcp_address, nsqd_http=nsqd.http_address, lookupd_tcp=None, lookupd_http=None
            )
        )

        def outcome(name: str) -> str | None:
            number = names.index(name)
            return run.outcome(CASES[name], "nsqd", targets, PATIENCE, f"{stamp}{number:03d}")

        with ThreadPoolExecutor(12) as pool, ThreadPoolExecutor(1) as lonely_pool:
            running = {name: pool.submit(outcome, name) for name in shared}
            others = list(running.values())
            lonely_pool.submit(wait, others)
            running |= {name: lonely_pool.submit(outcome, name) for name in alone}
            yield running
        assert not [line for line in nsqd.lines if "Traceback" in line or "Exception" in line]


@pytest.mark.parametrize("name", CASES)
def test_nsqd_does_as_nsq_does(name: str, outcomes: Outcomes) -> None:
    if is_later(CASES[name]):
        pytest.skip("later issue")
    error = outcomes[name].result()
    assert error is None, error
