"""Every case of the conformance kit against our daemons: conversations as NSQ 1.3.0 has them.

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
from tests.daemon import Nsqd, Nsqlookupd

FOLDER = Path(__file__).parent / "conformance"
# The kit's name of each server: its flags, and its cases.
KITS = {"nsqd": run.load(FOLDER / "nsqd.json"), "lookupd": run.load(FOLDER / "nsqlookupd.json")}
CASES: dict[tuple[str, str], dict[str, Any]] = {
    (kind, case["name"]): case for kind, kit in KITS.items() for case in kit["cases"]
}
PATIENCE = 3.0  # times the time limits of the kit, which are those of an idle machine

Outcomes = dict[tuple[str, str], "Future[str | None]"]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    """The outcome of every case that was selected, once it has run."""
    selected = {
        item.callspec.params["case"] for item in request.session.items if item.module is request.module
    }
    cases = [case for case in CASES if case in selected]
    # the long ones first, so that the others run meanwhile
    cases.sort(key=lambda case: -CASES[case].get("timeout_ms", run.DEFAULT_TIMEOUT_MS))
    shared = [case for case in cases if not CASES[case].get("exclusive")]
    alone = [case for case in cases if CASES[case].get("exclusive")]
    stamp = os.urandom(4).hex()
    with (
        Nsqd(tmp_path_factory.mktemp("nsqd"), *KITS["nsqd"]["flags"]).start() as nsqd,
        Nsqlookupd(*KITS["lookupd"]["flags"]).start() as nsqlookupd,
    ):
        targets = run.Targets(
            SimpleNamespace(
                nsqd_tcp=nsqd.tcp_address,
                nsqd_http=nsqd.http_address,
                lookupd_tcp=nsqlookupd.tcp_address,
                lookupd_http=nsqlookupd.http_address,
            )
        )

        def outcome(case: tuple[str, str]) -> str | None:
            return run.outcome(CASES[case], case[0], targets, PATIENCE, f"{stamp}{cases.index(case):03d}")

        with ThreadPoolExecutor(12) as pool, ThreadPoolExecutor(1) as lonely_pool:
            running = {case: pool.submit(outcome, case) for case in shared}
            others = list(running.values())
            lonely_pool.submit(wait, others)
            running |= {case: lonely_pool.submit(outcome, case) for case in alone}
            yield running
        lines = nsqd.lines + nsqlookupd.lines
        assert not [line for line in lines if "Traceback" in line or "Exception" in line]


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_it_does_as_nsq_does(case: tuple[str, str], outcomes: Outcomes) -> None:
    error = outcomes[case].result()
    assert error is None, error
