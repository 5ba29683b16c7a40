"""How fast `nsquark check` reads a data directory, beside reading the same files and doing nothing.

    python bench/data_path/check.py [--gigabytes N] [--rounds N] [--directory DIR] [--smoke] [--json FILE]

Writes a topic of 200-byte messages with nsqd's own log, then alternates: reading every segment into one
buffer, and the check. Both find the files in the page cache as far as it holds them, so the ratio says what
the checking costs beside the reading.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from nsquark.data_path.check import check
from nsquark.log import Journal, Limits, TopicLog

BODY = 200
BATCH = 200
SEGMENT = 100 << 20


def write_topic(data_path: Path, size: int) -> None:
    """A topic of about `size` bytes in segments of 100 MB, and its journal."""
    directory = data_path / "topics" / "bench"
    directory.mkdir(parents=True)
    (data_path / "nsqd.dat").write_text('{"topics":[{"name":"bench","paused":false,"channels":null}]}')
    leased = 0

    def lease(count: int) -> tuple[int, int]:
        nonlocal leased
        leased += 1
        return leased << 24, 1 << 24

    mpub = struct.pack(">i", BATCH) + (struct.pack(">i", BODY) + b"x" * BODY) * BATCH
    log = TopicLog(directory, Limits(SEGMENT, 0), lease)
    while log.segments[0].file_base + sum(each.size for each in log.segments) < size:
        for _ in range(100):
            log.add_mpub(mpub, 0, BATCH, time.time_ns())
            log.commit()
    log.close(sync=False)
    known = {"node": "0" * 32, "blocks": leased + 1, "floor": 0, "version": 1}
    (data_path / "nsquark.dat").write_text(json.dumps(known))
    journal = Journal(directory)
    journal.begin()
    journal.identify(1)
    journal.pump(0)
    os.close(journal.rewrite()[0])
    journal.close(sync=False)


def read_all(data_path: Path) -> int:
    """Read every segment and do nothing with it; returns the bytes."""
    buffer, total = bytearray(1 << 20), 0
    for path in sorted((data_path / "topics" / "bench").glob("*.log")):
        with open(path, "rb", buffering=0) as file:
            while got := file.readinto(buffer):
                total += got
    return total


def check_all(data_path: Path) -> int:
    report = check(data_path)
    if report.findings:
        raise SystemExit("\n".join(each.text for each in report.findings))
    return report.topics[0].size


def rate(read: Callable[[Path], int], data_path: Path) -> float:
    begin = time.perf_counter()
    return read(data_path) / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--directory", help="where the files are written; default: the system's temporary folder"
    )
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.gigabytes, arguments.rounds = 0.02, 1
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        data_path = Path(folder)
        write_topic(data_path, int(arguments.gigabytes * 1e9))
        read_all(data_path)
        plain, checked = [], []
        for _ in range(arguments.rounds):
            plain.append(rate(read_all, data_path))
            checked.append(rate(check_all, data_path))
    ratios = sorted(one / other for one, other in zip(checked, plain, strict=True))
    result = {"read": median(plain), "check": median(checked), "ratio": median(ratios)}
    print(f"read   {result['read'] / 1e6:9,.0f} MB/s")
    print(f"check  {result['check'] / 1e6:9,.0f} MB/s")
    print(f"check / read  {result['ratio']:.2f}  ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    if arguments.json:
        arguments.json.write_text(json.dumps(result))


if __name__ == "__main__":
    sys.exit(main())
