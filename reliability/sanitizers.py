"""The compiled modules under the address and undefined-behaviour sanitizers: tests, fuzzing, no report.

    python -m reliability.sanitizers                      build, then everything
    python -m reliability.sanitizers --only tests/log     some tests alone; `--only sockets`, `--only corpus`

Builds a copy of the sources with gcc's -fsanitize=address,undefined into a folder of its own. Against that it
runs the tests of the parts that are compiled, the recorded cases of NSQ, the corpus of `reliability.fuzz` and
the connections of `reliability.fuzz.sockets`. A process ends when a sanitizer finds something, nsqd's too,
and writes it to a file or to stderr. Exits with 1 if there is a report, or if a test fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLAGS = "-fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined"
TESTS = (
    "tests/kernel",
    "tests/log",
    "tests/wire",
    "tests/http",
    "tests/nsqd/core",
    "tests/nsqd/protocol",
    "tests/compat/test_conformance.py",
)
# What measures memory, which a sanitizer multiplies, and what preloads another clock.
LEFT_OUT = ("costs_little_memory", "hold_a_few_kilobytes", "clock_is_set")
UNDEFINED = "runtime error: "
# A library with two faults, to see that faults are seen.
_FAULTY = """
#include <stdlib.h>
int beyond(int at) { char *p = malloc(8); p[0] = 1; int got = p[at]; free(p); return got; }
int overflow(int n) { return n + 2147483647; }
"""


def library(name: str) -> str:
    """The path of a runtime library of the compiler."""
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return os.path.realpath(found.stdout.strip())


def environment(work: Path) -> dict[str, str]:
    """For a Python that imports the sanitized modules."""
    reports = work / "reports"
    options = f"log_path={reports}/report:print_stacktrace=1:halt_on_error=1"
    return os.environ | {
        "LD_PRELOAD": f"{library('libasan.so')}:{library('libubsan.so')}",
        "PYTHONMALLOC": "malloc",  # or the sanitizer would see arenas in place of objects
        "ASAN_OPTIONS": f"{options}:detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": options,
        "PYTHONPATH": f"{work / 'tree' / 'src'}{os.pathsep}{ROOT}",
        "NSQUARK_PURE": "0",
        "NSQUARK_SANITIZED": "1",
    }


def build(work: Path) -> None:
    """Compile a copy of the sources. What has not changed since the last time is not compiled again."""
    tree = work / "tree"
    tree.mkdir(parents=True, exist_ok=True)
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.c")
    shutil.copytree(ROOT / "src", tree / "src", ignore=ignored, dirs_exist_ok=True)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        text = (ROOT / name).read_text().replace('"-O3"', '"-O1"')  # or it would take a quarter of an hour
        if not (tree / name).exists() or (tree / name).read_text() != text:
            (tree / name).write_text(text)
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=tree,
        env=os.environ | {"CFLAGS": f"{FLAGS} -O1", "LDFLAGS": FLAGS},
        check=True,
    )


def prove(work: Path) -> None:
    """Make both sanitizers report, so that their silence means something. Raises RuntimeError."""
    source, compiled = work / "faulty.c", work / "faulty.so"
    source.write_text(_FAULTY)
    subprocess.run(["gcc", *FLAGS.split(), "-shared", "-fPIC", "-o", compiled, source], check=True)
    for call in ("beyond(9)", "overflow(1)"):
        clear(work)
        program = f"import ctypes; ctypes.CDLL({str(compiled)!r}).{call}"
        done = subprocess.run([sys.executable, "-c", program], env=environment(work), capture_output=True)
        # Undefined behaviour is told on stderr, and ends the process, whatever log_path says.
        if not done.returncode or not (reports(work) or UNDEFINED.encode() in done.stderr):
            raise RuntimeError(f"the sanitizers do not see the fault in {call}")
    clear(work)


def clear(work: Path) -> None:
    shutil.rmtree(work / "reports", ignore_errors=True)
    (work / "reports").mkdir()


def reports(work: Path) -> list[Path]:
    return sorted((work / "reports").iterdir())


def check_compiled(environ: Mapping[str, str], work: Path) -> None:
    """Raises RuntimeError unless the modules that will run are the sanitized ones."""
    program = (
        "from nsquark import kernel; from nsquark.kernel import fast; print(kernel.COMPILED, fast.__file__)"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True)
    if not done.stdout.startswith(f"True {work}"):
        raise RuntimeError(f"the sanitized modules do not load: {done.stdout}{done.stderr}")


def commands(only: Sequence[str], connections: int, mutations: int) -> dict[str, list[str]]:
    """What to run, by name: tests, `corpus` or `sockets`."""
    python = [sys.executable, "-m"]
    pytest = [*python, "pytest", "-q", "-p", "no:cacheprovider", "--timeout=600", "-k"]
    known = {
        "corpus": [*python, "reliability.fuzz.replay", f"--mutations={mutations}"],
        "sockets": [*python, "reliability.fuzz.sockets", f"--connections={connections}"],
    }
    wanted = only or [*TESTS, *known]
    left = " and ".join(f"not {each}" for each in LEFT_OUT)
    return {name: known.get(name) or [*pytest, left, name] for name in wanted}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reliability.sanitizers", description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="run this alone; may be given again")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "sanitizers", help="the build and reports"
    )
    parser.add_argument("--connections", type=int, default=3000, help="of the socket fuzzer")
    parser.add_argument("--mutations", type=int, default=2000, help="of each target of the corpus")
    given = parser.parse_args()
    work = given.work.absolute()
    build(work)
    prove(work)
    environ = environment(work)
    check_compiled(environ, work)
    failed = []
    for name, command in commands(given.only, given.connections, given.mutations).items():
        began = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
        lines = (done.stdout if name != "corpus" else done.stderr).strip().splitlines()
        print(
            f"{name}: exit {done.returncode}, {time.monotonic() - began:.0f} s, {(lines or [''])[-1][:200]}",
            flush=True,
        )
        if done.returncode or UNDEFINED in done.stdout + done.stderr:
            failed.append(name)
            print(done.stdout[-6000:], done.stderr[-4000:], sep="\n", flush=True)
    found = reports(work)
    for path in found:
        print(f"\n{path}\n{path.read_text(errors='replace')[:6000]}")
    print(f"{len(found)} reports, {len(failed)} failures{': ' if failed else ''}{', '.join(failed)}")
    sys.exit(bool(found or failed))


if __name__ == "__main__":
    main()
