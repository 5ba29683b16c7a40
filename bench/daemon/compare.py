"""Compares our nsqd with another one, workload by workload, on this machine and in one run.

    python bench/daemon/compare.py                          figures of ours alone
    python bench/daemon/compare.py --against PATH_TO_NSQD   with the other's figures and the ratios
    python bench/daemon/compare.py --peers                  Redis, NATS, beanstalkd, RabbitMQ, if installed
    python bench/daemon/compare.py --against OLD --same-flags   an earlier nsquark: with its files, like ours

The two take turns within each round, each time as a fresh process with empty data. The figure of a
measure is the median of its rounds; with a ratio comes the interval in which 95 of 100 such runs would
find it, as far as the rounds tell.
"""

import argparse
import json
import os
import re
import resource
import sys
import tempfile
from pathlib import Path

import load
import peers
from contest import ROOT, Contest
from layers import make_certificate
from reporting import markdown, report, table, table_of_peers
from workloads import SMOKE, WORKLOADS, Effort


def raise_file_limit(needed: int, wanted: int) -> None:
    """Let this process's children open `wanted` files each, or as many as are allowed.

    Raises SystemExit where that is less than `needed`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = wanted if hard == resource.RLIM_INFINITY else max(hard, wanted)
    for limit in (highest, hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, limit)), limit))
        except (ValueError, PermissionError):
            continue
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= needed:
            return
    sys.exit(f"compare.py: needs {needed} open files (`ulimit -Hn`); leave some out with --only")


def parse_arguments() -> argparse.Namespace:
    names = ", ".join(measure.name for workload in WORKLOADS for measure in workload.measures)
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], epilog=f"Measures: {names}"
    )
    parser.add_argument("--nsqd", type=Path, default=ROOT / ".venv/bin/nsqd", metavar="PATH", help="our nsqd")
    parser.add_argument("--against", type=Path, metavar="PATH", help="another nsqd to compare with")
    parser.add_argument("--peers", action="store_true", help="other queues that are installed, too")
    parser.add_argument("--same-flags", action="store_true", help="the other keeps its files too")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="turns for each (default 3)")
    parser.add_argument("--seconds", type=float, default=3, metavar="S", help="length of a run (default 3)")
    parser.add_argument("--only", type=re.compile, metavar="REGEX", help="workloads with such a measure")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where to make the temporary data folders")
    parser.add_argument("--log-mb", type=int, metavar="MB", help="size of the log for `start-large`")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there, for a page")
    parser.add_argument("--smoke", action="store_true", help="one very short round, for the tests")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    for executable in filter(None, (arguments.nsqd, arguments.against)):
        if not os.access(executable, os.X_OK):
            sys.exit(f"compare.py: no nsqd at {executable}")
    effort, rounds = Effort(arguments.seconds), arguments.rounds
    if arguments.smoke:
        effort, rounds = SMOKE, 1
    if arguments.log_mb:
        effort.log_mb = arguments.log_mb
    workloads = [
        workload
        for workload in WORKLOADS
        if not arguments.only or any(arguments.only.search(measure.name) for measure in workload.measures)
    ]
    if not workloads:
        sys.exit(f"compare.py: no measure matches {arguments.only.pattern!r}")
    measures = [measure for workload in workloads for measure in workload.measures]
    names = {measure.name for measure in measures}
    conns = effort.idle_conns if "idle" in names else effort.many_conns
    # Our nsqd may have a log and a journal open for each topic.
    topic_files = 2 * (effort.many_topics if "start-many" in names else effort.topics)
    raise_file_limit(conns + 200, conns + topic_files + 200)
    load.compile_nsqload()

    contest = Contest(arguments.nsqd, arguments.against, arguments.data)
    if arguments.peers:
        contest.peers = peers.installed()
    if arguments.same_flags:
        contest.other_flags = []
    with tempfile.TemporaryDirectory(prefix="nsqd-bench-") as folder:
        if any(workload.certified for workload in workloads):
            contest.certificate = make_certificate(Path(folder))
        for workload in workloads:
            contest.play(workload, effort, rounds)

    print(table(contest, measures))
    if contest.peers:
        print(f"\n{table_of_peers(contest, measures)}")
    print(f"\nEach figure is the median of {rounds} round(s).")
    if contest.other:
        print("A ratio is our figure divided by the other's.")
    if arguments.smoke:
        print("This was a smoke run: it shows that everything runs, and nothing about speed or memory.")
    if arguments.json:
        arguments.json.write_text(json.dumps(report(contest, measures, effort, rounds), indent=2) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(markdown(contest, measures) + "\n")
    for error in contest.errors:
        print(f"failed: {error}")
    return 1 if contest.errors else 0


if __name__ == "__main__":
    sys.exit(main())
