"""What each function of the kernel gains over its twin in plain Python.

    python bench/kernel/functions.py [--smoke] [--json FILE]

Prints nanoseconds per message (per byte for the CRC) for both and the ratio, which is what holds from machine
to machine. A function whose gain is gone belongs into plain Python.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import time
from collections.abc import Callable
from types import ModuleType

from nsquark.kernel import pure

MESSAGES = 200
BODY = b"x" * 200


def workloads(kernel: ModuleType) -> dict[str, tuple[Callable[[], object], int]]:
    """Name: (what to run, how many messages that is)."""
    sized = struct.pack(">I", len(BODY)) + BODY
    pubs = bytearray((b"PUB topic\n" + sized) * MESSAGES)
    mpub = bytearray(struct.pack(">I", MESSAGES) + sized * MESSAGES)
    fins = bytearray(b"".join(b"FIN %016x\n" % number for number in range(MESSAGES)))
    reqs = bytearray(b"".join(b"REQ %016x 0\n" % number for number in range(MESSAGES)))
    writer = pure.BatchWriter(0, 0)
    for _ in range(4):  # four batches of a quarter each
        writer.renumber(writer.position, writer.next_id)
        writer.add_bodies([BODY] * (MESSAGES // 4), 1, 0)
    log = writer.take()
    frames = bytes(pure.gather(log, 0, len(log), 0, MESSAGES, 1 << 30)[0])
    mine = kernel.BatchWriter(0, 0)

    def publish() -> None:
        mine.add_mpub(mpub, 0, MESSAGES, 1)
        mine.take()

    def publish_singly() -> None:
        mine.add_pubs(pubs, 0, MESSAGES, 10, 1)
        mine.take()

    return {
        "crc32c": (lambda: kernel.crc32c(log, 0, len(log)), len(log)),
        "scan_fins": (lambda: kernel.scan_fins(fins, 0, len(fins)), MESSAGES),
        "scan_reqs": (lambda: kernel.scan_reqs(reqs, 0, len(reqs)), MESSAGES),
        "next_fins": (lambda: kernel.next_fins(fins, 0, len(fins)), MESSAGES),
        "scan_pubs": (lambda: kernel.scan_pubs(pubs, 0, len(pubs), 1 << 20), MESSAGES),
        "scan_mpub": (lambda: kernel.scan_mpub(mpub, 0, len(mpub), 1 << 20, 1 << 22, 0, 0), MESSAGES),
        "BatchWriter.add_mpub, take": (publish, MESSAGES),
        "BatchWriter.add_pubs, take": (publish_singly, MESSAGES),
        "gather": (lambda: kernel.gather(log, 0, len(log), 0, MESSAGES, 1 << 30), MESSAGES),
        "find_message": (lambda: kernel.find_message(log, 0, len(log), MESSAGES - 1), MESSAGES),
        "frame_ends": (lambda: kernel.frame_ends(frames), MESSAGES),
        "index_frames": (lambda: kernel.index_frames(log, len(log), 0, 0, 0, 0, MESSAGES), MESSAGES),
        "decode_batches": (lambda: kernel.decode_batches(log, 0, MESSAGES, True, True, True), MESSAGES),
        "with_attempts": (lambda: kernel.with_attempts(frames, 2), MESSAGES),
        "scan_batches": (lambda: kernel.scan_batches(log, 0, len(log), True, 65536), MESSAGES),
    }


def measure(run: Callable[[], object], number: int, seconds: float) -> float:
    """The best time of a single run, in nanoseconds per message."""
    best = float("inf")
    end = time.perf_counter() + seconds
    while True:
        begin = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, now - begin)
        if now > end:
            return best / number * 1e9


def main() -> int:
    parser = argparse.ArgumentParser(description="Times the kernel against its pure twin.")
    parser.add_argument("--smoke", action="store_true", help="each only for a moment")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    try:
        from nsquark.kernel import fast
    except ImportError:
        print("the kernel is not compiled: make setup", file=sys.stderr)
        return 1
    seconds = 0.002 if options.smoke else 0.5
    slow, quick = workloads(pure), workloads(fast)
    figures = {}
    print(f"{'function':28} {'pure, ns':>10} {'fast, ns':>10} {'ratio':>8}")
    for name, (run, number) in quick.items():
        mine = measure(run, number, seconds)
        twin = measure(*slow[name], seconds)
        figures[name] = {"pure_ns": twin, "fast_ns": mine, "ratio": twin / mine}
        print(f"{name:28} {twin:10.1f} {mine:10.2f} {twin / mine:8.1f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(
                {"python": sys.version.split()[0], "body": len(BODY), "functions": figures}, file, indent=1
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
