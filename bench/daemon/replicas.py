"""What a replica group costs: a pair of nsqds on this machine beside a single one, in turn.

    python bench/daemon/replicas.py [--rounds N] [--seconds S] [--ack synced] [--only REGEX]

Both members, etcd and the load generator share the machine's cores, so the standby's work shows in the rates.
Needs etcd (Debian: etcd-server).
"""

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import load
import servers
from contest import ROOT, Contest, Run
from load import LoadError
from measuring import Workload
from reporting import report, table
from workloads import SMOKE, WORKLOADS, Effort

TARGETS = {
    "mpub": 0.6,
    "sub": 0.85,
    "pipelined": 0.65,
    "one-by-one": 0.7,
    "fan-out": 0.85,
    "p50-busy": None,
    "p50-calm": None,
}
LATENCIES = ("p50-calm", "p50-busy")
MOST_ADDED = 150.0  # µs that the median latency may rise


@dataclass(slots=True)
class PairContest(Contest):
    """`ours` is the primary of a pair, `other` a single nsqd of the same program."""

    etcd: str = ""
    ack: str = "written"
    pairs: int = 0

    def turns(self, workload: Workload) -> Iterator[tuple[str, AbstractContextManager[servers.Server], Run]]:
        self.pairs += 1
        yield "ours", pair(self.ours, self.etcd, f"g{self.pairs}", self.ack, self.data_parent), workload.run
        flags = ["--sync-every=1"] if self.ack == "synced" else []
        yield "other", servers.nsqd(self.ours, flags, self.data_parent), workload.run


@contextmanager
def etcd() -> Iterator[str]:
    client, peer = (f"http://127.0.0.1:{port}" for port in servers.free_ports(2))
    with tempfile.TemporaryDirectory(prefix="etcd-bench-") as folder:
        process = subprocess.Popen(
            [
                *("etcd", "--data-dir", folder, "--listen-client-urls", client),
                *("--advertise-client-urls", client, "--listen-peer-urls", peer),
                *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _until(lambda: _get(f"{client}/health"), "etcd does not answer")
            yield client
        finally:
            process.kill()
            process.wait()


@contextmanager
def pair(
    executable: Path, endpoint: str, group: str, ack: str, parent: Path | None
) -> Iterator[servers.Server]:
    """A primary with a standby in sync; the server is the primary. Raises LoadError."""
    with contextlib.ExitStack() as stack:
        started = []
        for member in ("a", "b"):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nsqd-bench-", dir=parent)))
            tcp, http = servers.free_ports(2)
            argv = [
                str(executable),
                *(f"--tcp-address=127.0.0.1:{tcp}", f"--http-address=127.0.0.1:{http}"),
                *("--broadcast-address=127.0.0.1", f"--data-path={folder}", "--log-level=error"),
                *(f"--replica-group={group}", f"--replica-member={member}", f"--replica-etcd={endpoint}"),
                *(f"--replica-ack={ack}", "--replica-bootstrap"),
            ]
            with open(folder / "log", "wb") as out:
                process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
            server = servers.Server(tcp, http, process, argv, folder / "log", folder)
            stack.callback(server.kill)
            started.append(server)
            wanted = "primary" if member == "a" else "in-sync"
            _until(lambda: _state(http) == wanted, f"member {member} is not {wanted}")  # noqa: B023
        _until(lambda: len(_status(started[0].http_port).get("isr", ())) == 2, "the standby is not in isr")
        yield started[0]
        if len(_status(started[0].http_port).get("isr", ())) != 2:
            raise LoadError("the primary has gone on without its standby")


def _until(condition: object, otherwise: str) -> None:
    end = time.monotonic() + servers.START_TIMEOUT
    while not condition():  # type: ignore[operator]
        if time.monotonic() > end:
            raise LoadError(otherwise)
        time.sleep(0.02)


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            body: bytes = answer.read()
            return body
    except OSError:
        return b""


def _status(port: int) -> dict[str, object]:
    found: dict[str, object] = json.loads(_get(f"http://127.0.0.1:{port}/replica") or b"{}")
    return found


def _state(port: int) -> str:
    told = _status(port)
    return "" if told.get("state") == "primary" and not told.get("serving") else str(told.get("state", ""))


def _chosen(only: re.Pattern[str] | None) -> list[Workload]:
    """The workloads that the design page has targets for, with these targets."""
    chosen = []
    for workload in WORKLOADS:
        if not any(measure.name in TARGETS for measure in workload.measures):
            continue
        if only and not any(only.search(measure.name) for measure in workload.measures):
            continue
        measures = [replace(measure, target=TARGETS.get(measure.name)) for measure in workload.measures]
        chosen.append(replace(workload, measures=measures, sink=False))
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nsqd", type=Path, default=ROOT / ".venv/bin/nsqd", metavar="PATH")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--seconds", type=float, default=2, metavar="S")
    parser.add_argument("--only", type=re.compile, metavar="REGEX")
    parser.add_argument("--ack", choices=("written", "synced"), default="written")
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    if shutil.which("etcd") is None:
        sys.exit("replicas.py: there is no etcd (apt-get install etcd-server)")
    effort, rounds = (SMOKE, 1) if arguments.smoke else (Effort(arguments.seconds), arguments.rounds)
    load.compile_nsqload()
    workloads = _chosen(arguments.only)
    measures = [measure for workload in workloads for measure in workload.measures]
    with etcd() as endpoint:
        contest = PairContest(
            arguments.nsqd, arguments.nsqd, arguments.data, etcd=endpoint, ack=arguments.ack
        )
        for workload in workloads:
            contest.play(workload, effort, rounds)
    print(table(contest, measures))
    print("\n`ours` is the primary of a pair, `other` a single nsqd.")
    for measure in measures:
        ours, other = contest.figure("ours", measure), contest.figure("other", measure)
        if measure.name in LATENCIES and ours is not None and other is not None:
            print(f"{measure.name}: {(ours - other) * 1000:+.0f} µs; the bound is +{MOST_ADDED:.0f} µs")
    if arguments.json:
        arguments.json.write_text(json.dumps(report(contest, measures, effort, rounds), indent=2) + "\n")
    for error in contest.errors:
        print(f"failed: {error}")
    return 1 if contest.errors else 0


if __name__ == "__main__":
    sys.exit(main())
