"""How fast one reader gets a backlog through `/log/read`, and what ordinary consumers notice of it.

    python bench/log/read.py [--seconds S] [--messages N] [--rate R] [--rounds N] [--smoke] [--json FILE]

Publishes a backlog of 200-byte messages to files. Then, in turn and in each round: the latency from publisher
to consumer of another topic alone; the reader alone; both at once. The reader is a process of its own that
receives ranges and looks at their heads; it does not decode. Figures are medians of the rounds, and the last
column, the latency with the reader divided by that without, is what holds from machine to machine.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "daemon"))

import load  # noqa: E402
import servers  # noqa: E402

HEAD = struct.Struct(">4sIQQQ")
RANGE_BYTES = 16 << 20


def read_ranges(port: int, seconds: float) -> dict[str, float]:
    """Read the topic from its beginning to its end, again and again, for so long."""
    buffer = bytearray(1 << 20)
    received = messages = position = 0
    begin = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        file = connection.makefile("rb", buffering=1 << 16)
        while time.perf_counter() - begin < seconds:
            request = f"GET /log/read?topic=bench&from={position}&max_bytes={RANGE_BYTES} HTTP/1.1\r\n"
            connection.sendall(request.encode() + b"Host: nsqd\r\n\r\n")
            status = file.readline().split()[1]
            if status != b"200":
                raise SystemExit(f"/log/read answered {status.decode()}")
            length = 0
            while (line := file.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            _, count, position, _, _ = HEAD.unpack(file.read(HEAD.size))
            rest = length - HEAD.size
            while rest:
                rest -= file.readinto(memoryview(buffer)[: min(rest, len(buffer))])
            received += length
            messages += count
            position = position + count if count else 0
    took = time.perf_counter() - begin
    return {"mb_per_s": received / took / 1e6, "messages_per_s": messages / took}


def start_reader(port: int, seconds: float) -> subprocess.Popen[str]:
    argv = [sys.executable, __file__, "--read", str(port), str(seconds)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def reader_figures(process: subprocess.Popen[str]) -> dict[str, float]:
    out, _ = process.communicate(timeout=120)
    if process.returncode:
        raise load.LoadError("the reader failed")
    figures: dict[str, float] = json.loads(out)
    return figures


def latency(server: servers.Server, seconds: float, rate: int) -> dict[str, float]:
    both = load.run("pubsub", server.port, seconds, batch=1, conns=2, rate=rate, topic="latency")
    if both.p50_us is None or both.p99_us is None:
        raise load.LoadError("no message arrived")
    return {"p50_ms": both.p50_us / 1e3, "p99_ms": both.p99_us / 1e3}


def measure(args: argparse.Namespace) -> dict[str, object]:
    load.compile_nsqload()
    executable = Path(sys.executable).parent / "nsqd"
    rounds: list[dict[str, float]] = []
    with servers.nsqd(executable, ["--mem-queue-size=10000"], args.data) as server:
        published = 0
        while published < args.messages:
            step = min(args.seconds, 1.0)
            published += load.run("pub", server.port, step, batch=200, topic="bench").published
        for _ in range(args.rounds):
            figures = {
                f"{name}_alone": value for name, value in latency(server, args.seconds, args.rate).items()
            }
            figures |= reader_figures(start_reader(server.http_port, args.seconds))
            reader = start_reader(server.http_port, args.seconds + 1)
            time.sleep(0.3)
            figures |= latency(server, args.seconds, args.rate)
            figures |= {f"{name}_with_consumers": value for name, value in reader_figures(reader).items()}
            rounds.append(figures)
    names = rounds[0]
    result: dict[str, object] = {name: median(each[name] for each in rounds) for name in names}
    return {"messages": published, "rate": args.rate, "cpus": os.cpu_count(), **result}


def main() -> None:
    if sys.argv[1:2] == ["--read"]:
        print(json.dumps(read_ranges(int(sys.argv[2]), float(sys.argv[3]))))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rate", type=int, default=1000, help="messages a second for the latency")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=None, help="where the nsqd's data go")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--smoke", action="store_true", help="does it still run?")
    args = parser.parse_args()
    if args.smoke:
        args.seconds, args.messages, args.rounds = 0.3, 1000, 1
    result = measure(args)
    print(f"backlog          {result['messages']:>12,} messages of {load.MESSAGE_SIZE} bytes, in files")
    print(f"reader alone     {result['mb_per_s']:>12,.0f} MB/s {result['messages_per_s']:>14,.0f} messages/s")
    print(
        f"with consumers   {result['mb_per_s_with_consumers']:>12,.0f} MB/s "
        f"{result['messages_per_s_with_consumers']:>14,.0f} messages/s"
    )
    for name in ("p50_ms", "p99_ms"):
        alone, beside = float(str(result[f"{name}_alone"])), float(str(result[name]))
        print(f"{name:<16} {alone:>12.3f} alone, {beside:.3f} with the reader: {beside / alone:.2f} times")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
