"""`/stats` of a large node: how long it takes, and what it holds up meanwhile.

    python bench/http/stats.py                          ours alone
    python bench/http/stats.py --against PATH_TO_NSQD   with the other's figures

1,000 topics with 10 channels each. A publisher and a consumer send 1,000 messages a second through another
topic and measure each on its way; first in peace, then with one `/stats?format=json` after another. A large
node's answer must not be the reason why a message is late.
"""

import argparse
import http.client
import json
import sys
import threading
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "daemon"))

import load
import servers
from load import LoadError

ROOT = Path(__file__).resolve().parents[2]
RATE = 1_000
PATHS = ("/stats?format=json", "/metrics")


def metadata(topics: int, channels: int) -> str:
    """An nsqd.dat with so many topics and so many channels of each."""
    named = [{"name": f"channel-{number}", "paused": False} for number in range(channels)]
    return json.dumps(
        {
            "topics": [
                {"name": f"topic-{number:04}", "paused": False, "channels": named} for number in range(topics)
            ],
            "version": "1.3.0",
        }
    )


def wait_until_it_serves(port: int) -> None:
    """It listens before it has read its topics, and answers after."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/ping")
    connection.getresponse().read()
    connection.close()


class Asking(threading.Thread):
    """Asks for statistics again and again, with a pause as long as the answer took."""

    def __init__(self, port: int, path: str) -> None:
        super().__init__(daemon=True)
        self._port, self._path = port, path
        self._stop_asking = threading.Event()
        self.times: list[float] = []
        self.size = 0
        self.status = 200

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self._stop_asking.is_set():
            begin = time.perf_counter()
            connection.request("GET", self._path)
            answer = connection.getresponse()
            self.status, self.size = answer.status, len(answer.read())
            self.times.append(time.perf_counter() - begin)
            self._stop_asking.wait(self.times[-1])
        connection.close()

    def stop(self) -> None:
        self._stop_asking.set()
        self.join()


def measure(server: servers.Server, seconds: float) -> dict[str, object]:
    wait_until_it_serves(server.http_port)
    told: dict[str, object] = {"peace": latency(server, seconds)}
    for path in PATHS:
        asking = Asking(server.http_port, path)
        asking.start()
        disturbed = latency(server, seconds)
        asking.stop()
        if asking.status == 200:
            told[path] = {
                **disturbed,
                "answer_s": median(asking.times),
                "slowest_answer_s": max(asking.times),
                "answers": len(asking.times),
                "bytes": asking.size,
            }
    return told


def latency(server: servers.Server, seconds: float) -> dict[str, float]:
    both = load.run("pubsub", server.port, seconds, batch=1, conns=1, rate=RATE)
    if both.max_us is None or both.p99_us is None or both.p50_us is None:
        raise LoadError("no message arrived")
    return {"p50_ms": both.p50_us / 1e3, "p99_ms": both.p99_us / 1e3, "worst_ms": both.max_us / 1e3}


def show(who: str, told: dict[str, object]) -> None:
    for when, figures in told.items():
        line = f"{who:5}  {when:18}" + "".join(
            f"  {name} {figures[f'{name}_ms']:8.2f} ms" for name in ("p50", "p99", "worst")
        )
        if "answer_s" in figures:
            answer, slowest = figures["answer_s"] * 1e3, figures["slowest_answer_s"] * 1e3
            line += f"  answer {answer:6.0f} ms (slowest {slowest:.0f}), {figures['bytes'] / 1e6:.1f} MB"
        print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nsqd", type=Path, default=ROOT / ".venv/bin/nsqd", metavar="PATH", help="our nsqd")
    parser.add_argument("--against", type=Path, metavar="PATH", help="another nsqd to compare with")
    parser.add_argument("--topics", type=int, default=1000, metavar="N", help="(default 1000)")
    parser.add_argument("--channels", type=int, default=10, metavar="N", help="of each (default 10)")
    parser.add_argument("--seconds", type=float, default=5, metavar="S", help="of each part (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there too")
    parser.add_argument("--smoke", action="store_true", help="a small node and a moment, for the tests")
    arguments = parser.parse_args()
    topics, channels, seconds = arguments.topics, arguments.channels, arguments.seconds
    if arguments.smoke:
        topics, channels, seconds = 5, 2, 0.3
    load.compile_nsqload()
    result: dict[str, object] = {"topics": topics, "channels": channels, "rate": RATE}
    sides = {"ours": arguments.nsqd, **({"other": arguments.against} if arguments.against else {})}
    for who, executable in sides.items():
        with servers.nsqd(executable, [], None, metadata(topics, channels)) as server:
            told = measure(server, seconds)
        show(who, told)
        result[who] = told
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
