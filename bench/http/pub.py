"""How many `/pub` requests a second: `wrk` against our nsqd, and against another one in turn.

    python bench/http/pub.py                          ours alone
    python bench/http/pub.py --against PATH_TO_NSQD   with the other's figure and the ratio

200-byte bodies, 32 connections, one request at a time on each. Both store a message, then answer `OK`; the
other may keep all of them in memory. A figure is the median of its rounds.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "daemon"))

import servers
from load import LoadError

ROOT = Path(__file__).resolve().parents[2]
TARGET = 1.5
OTHER_FLAGS = ["--mem-queue-size=10000000"]
SCRIPT = 'wrk.method = "POST"\nwrk.body = string.rep("x", 200)\n'


def run_wrk(port: int, connections: int, seconds: float) -> float:
    """Requests a second. Raises LoadError if any was answered with anything but success."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(SCRIPT)
        script.flush()
        url = f"http://127.0.0.1:{port}/pub?topic=bench"
        argv = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "-s", script.name, url]
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode or "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise LoadError(f"wrk: {done.stdout}{done.stderr}")
    found = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    if not found:
        raise LoadError(f"wrk printed no figure: {done.stdout}")
    return float(found[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nsqd", type=Path, default=ROOT / ".venv/bin/nsqd", metavar="PATH", help="our nsqd")
    parser.add_argument("--against", type=Path, metavar="PATH", help="another nsqd to compare with")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="turns for each (default 3)")
    parser.add_argument("--seconds", type=float, default=5, metavar="S", help="length of a run (default 5)")
    parser.add_argument("--connections", type=int, default=32, metavar="N", help="(default 32)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there too")
    parser.add_argument("--smoke", action="store_true", help="one very short round, for the tests")
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("pub.py: needs `wrk`, which is not installed (Debian: apt-get install wrk)")
    rounds, seconds = (1, 1.0) if arguments.smoke else (arguments.rounds, arguments.seconds)
    sides = {"ours": (arguments.nsqd, [])}
    if arguments.against:
        sides["other"] = (arguments.against, OTHER_FLAGS)
    figures: dict[str, list[float]] = {who: [] for who in sides}
    for number in range(1, rounds + 1):
        for who, (executable, flags) in sides.items():
            with servers.nsqd(executable, flags, None) as server:
                figures[who].append(run_wrk(server.http_port, arguments.connections, seconds))
            print(
                f"round {number} of {rounds}  {who:5}  {figures[who][-1]:,.0f}/s", file=sys.stderr, flush=True
            )
    result: dict[str, object] = {"rounds": figures, "target": TARGET}
    for who, measured in figures.items():
        result[who] = median(measured)
        print(f"{who:5}  {median(measured):>10,.0f} requests/s")
    if arguments.against:
        result["ratio"] = ratio = median(figures["ours"]) / median(figures["other"])
        print(f"ratio  {ratio:>10.2f}  target >= {TARGET}: {'met' if ratio >= TARGET else 'NOT met'}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
