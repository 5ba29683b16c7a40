"""Fuzzes targets with atheris, replays what that has found with both kernels, and says how far it got.

Exits with 1 if anything was found. The inputs that reach new code are kept in the work folder, and the next
run goes on from there; `--keep` puts a small selection of them into the repository's corpus.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from .target import CORPUS, NAMES, load, silence

ROOT = Path(__file__).parents[2]
_PROGRESS = re.compile(r"cov: (\d+) ft: (\d+)")
_STAT = re.compile(r"stat::number_of_executed_units: (\d+)")


@dataclass
class Result:
    target: str
    seconds: float = 0.0  # of the processor
    executions: int = 0
    branches: int = 0
    features: int = 0
    inputs: int = 0
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        found = f"  {len(self.faults)} FAULTS" if self.faults else ""
        return (
            f"{self.target:<14} {self.seconds:>8.0f} s {self.executions:>10} runs {self.branches:>6} branches"
            f" {self.features:>7} features {self.inputs:>5} inputs{found}"
        )


def environment(pure: bool) -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"NSQUARK_PURE": "1" if pure else "0", "PYTHONPATH": os.pathsep.join(paths)}


def _quoted(word: bytes) -> str:
    """A line of libFuzzer's dictionaries."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n'


def fuzz(name: str, seconds: float, work: Path) -> Result:
    """Run one target under atheris for so long, from the seeds, the corpus and earlier runs on."""
    target, result = load(name), Result(name)
    inputs, found = work / "inputs" / name, work / "found" / name
    for each in (inputs, found):
        each.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        if len(seed) <= target.max_length:
            (inputs / f"seed-{number}").write_bytes(seed)
    words = work / f"{name}.dict"
    words.write_text("".join(_quoted(word) for word in target.words))
    flags = [
        f"-max_total_time={max(1, round(seconds))}",
        f"-max_len={target.max_length}",
        f"-dict={words}",
        f"-artifact_prefix={found}/",
        "-timeout=30",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
    ]
    folders = [str(inputs), *([str(CORPUS / name)] if (CORPUS / name).is_dir() else [])]
    log = work / f"{name}.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "reliability.fuzz.worker", name, *flags, *folders],
            cwd=ROOT,
            env=environment(pure=True),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    text = log.read_text(errors="replace")
    result.seconds = usage.ru_utime + usage.ru_stime
    if progress := _PROGRESS.findall(text):
        result.branches, result.features = map(int, progress[-1])
    if executed := _STAT.findall(text):
        result.executions = int(executed[-1])
    result.inputs = len(list(inputs.iterdir()))
    if process.returncode:
        result.faults.append(f"atheris ended with {process.returncode}: see {log} and {found}")
    return result


def replay(names: Sequence[str], arguments: Sequence[str]) -> list[Result]:
    """Run inputs with the compiled kernel and with the pure one, and compare what each understood."""
    command = [sys.executable, "-m", "reliability.fuzz.replay", *names, *arguments]
    results = {name: Result(name) for name in names}
    seen: dict[str, list[str]] = {}
    for pure in (False, True):
        done = subprocess.run(command, cwd=ROOT, env=environment(pure), capture_output=True, text=True)
        told = [json.loads(line) for line in done.stdout.splitlines()]
        for line in told:
            result = results[line["target"]]
            result.seconds += line["seconds"]
            result.executions += line["inputs"]
            result.faults += [line["fault"]] if "fault" in line else []
            if seen.setdefault(result.target, line["seen"]) != line["seen"] and not result.faults:
                first = [a == b for a, b in zip(seen[result.target], line["seen"], strict=False)].index(False)
                result.faults.append(f"the kernels differ in input {first}")
        if done.returncode not in (0, 1) or len(told) < len(names):
            results[names[len(told)]].faults.append(f"ended with {done.returncode}: {done.stderr[-2000:]}")
    return list(results.values())


def keep(names: Sequence[str], work: Path) -> None:
    """Put the smallest inputs that together reach what all inputs reach into the repository's corpus."""
    command = [sys.executable, "-m", "reliability.fuzz.coverage", *names, "--keep"]
    folder = f"--folder={work / 'inputs'}"
    subprocess.run([*command, folder], cwd=ROOT, env=environment(pure=True), check=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reliability.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(NAMES)}; all if none is named")
    parser.add_argument("--minutes", type=float, default=5.0, help="in all; each target has its share")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "fuzz", help="logs and inputs")
    parser.add_argument("--keep", action="store_true", help="add to the repository's corpus")
    parser.add_argument("--replay", action="store_true", help="no atheris: the corpus and mutations of it")
    parser.add_argument("--mutations", type=int, default=1000, help="of --replay, for each target")
    parser.add_argument("--seed", type=int, default=1, help="of --replay")
    given = parser.parse_args()
    names = given.targets or list(NAMES)
    if unknown := set(names) - set(NAMES):
        parser.error(f"no target {', '.join(sorted(unknown))}")
    if given.replay:
        results = replay(names, [f"--mutations={given.mutations}", f"--seed={given.seed}"])
    else:
        if find_spec("atheris") is None:
            parser.error("atheris is not installed: pip install 'nsquark[fuzz]', or use --replay")
        results = _fuzz_all(names, given)
    for result in results:
        for fault in result.faults:
            print(f"\n{result.target}: {fault}")
    sys.exit(any(result.faults for result in results))


def _fuzz_all(names: Sequence[str], given: argparse.Namespace) -> list[Result]:
    work = given.work.absolute()
    share = given.minutes * 60 * given.jobs / len(names)
    began = time.monotonic()
    with ThreadPoolExecutor(given.jobs) as pool:
        fuzzed = [pool.submit(fuzz, name, share, work) for name in names]
        results = []
        for each in fuzzed:
            results.append(each.result())
            print(results[-1].line(), flush=True)
    for result, again in zip(results, replay(names, [f"--folder={work / 'inputs'}"]), strict=True):
        result.faults += again.faults
    if given.keep:
        keep(names, work)
    seconds, runs = sum(each.seconds for each in results), sum(each.executions for each in results)
    print(f"{runs} runs in {seconds / 60:.1f} processor minutes, {time.monotonic() - began:.0f} s")
    return results


if __name__ == "__main__":
    silence()
    main()
