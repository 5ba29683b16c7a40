"""openapi.yaml is the truth about a running nsqd: schemathesis asks, and compares the answers.

Requests are made from the description, good ones and bad ones: always the same, and so many of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import requests
import schemathesis
import yaml
from schemathesis import Case
from schemathesis.checks import positive_data_acceptance
from schemathesis.config import SchemathesisConfig

from nsquark.nsqd.http import routes as http_api
from tests.daemon import Nsqd
from tests.nsqd.api import running

DESCRIPTION = yaml.safe_load(http_api.OPENAPI.read_text())
CONFIG = {"generation": {"max-examples": 10, "deterministic": True, "database": "none"}}
# Whether they accept a body depends on what no schema of a body can say.
MORE_THAN_A_SCHEMA = {"/mpub", "/mput", "/config/{opt}", "/staged/put", "/staged/prepare", "/staged/publish"}

schema = schemathesis.openapi.from_dict(DESCRIPTION, config=SchemathesisConfig.from_dict(CONFIG))


class Described:
    def __init__(self, nsqd: Nsqd) -> None:
        self.url = f"http://{nsqd.http_address}"
        self.session = requests.Session()


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Described]:
    """A node with something to tell."""
    path = tmp_path_factory.mktemp("openapi")
    with Nsqd(path, "--e2e-processing-latency-percentile=0.99").start() as nsqd:
        node = Described(nsqd)
        for topic in ("a", "b#ephemeral"):
            node.session.post(f"{node.url}/pub", params={"topic": topic}, data=b"x").raise_for_status()
        node.session.post(f"{node.url}/channel/create?topic=a&channel=c").raise_for_status()
        told = {"query_id": "q", "state": "failed", "batch": 3, "error": "no <such> file"}
        node.session.post(f"{node.url}/channel/report?topic=a&channel=c", json=told).raise_for_status()
        yield node
        assert nsqd.running
        node.session.close()


@schema.parametrize()
def test_what_is_described_is_what_is_served(case: Case, described: Described) -> None:
    if case.path == "/debug/pprof/profile":
        shorten(case)
    if case.path == "/channel/lease":
        shorten_hold(case)
    unfit = [positive_data_acceptance] if case.path in MORE_THAN_A_SCHEMA else []
    case.call_and_validate(base_url=described.url, session=described.session, excluded_checks=unfit)


def shorten(case: Case) -> None:
    """A profile may take five minutes: not here."""
    case.query = dict(case.query or {})
    with suppress(TypeError, ValueError):
        if 0.01 < float(case.query.get("seconds", 30)) <= 300:
            case.query["seconds"] = 0.01


def shorten_hold(case: Case) -> None:
    """A lease may be held for a minute."""
    case.query = dict(case.query or {})
    if str(case.query.get("hold_ms", "")).isdigit() and int(case.query["hold_ms"]) <= 60_000:
        case.query["hold_ms"] = 1


async def test_every_route_is_described(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        served = set(http_api.router(api.broker).listed())
    described = {
        (method.upper(), path.partition("{")[0])
        for path, item in DESCRIPTION["paths"].items()
        for method in item
        if method in ("get", "post", "put")
    }
    assert served == described
