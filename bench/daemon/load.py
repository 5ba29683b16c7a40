"""The load generator: compiles `nsqload.c` and runs it.

What the figures mean is left to the workloads; this module only sees that a run ended well.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MESSAGE_SIZE = 200

SOURCE = Path(__file__).resolve().parent.parent / "nsqload.c"
NSQLOAD = SOURCE.parent / "build" / "nsqload"


class LoadError(Exception):
    """A run that ended badly, or a server that did not keep up its side."""


@dataclass(slots=True)
class Figures:
    """What one run of nsqload printed."""

    published: int
    consumed: int
    pub_per_s: float
    sub_per_s: float
    p50_us: float | None
    p99_us: float | None
    p999_us: float | None
    max_us: float | None


def compile_nsqload() -> None:
    compile_program(SOURCE, NSQLOAD)


def compile_program(source: Path, program: Path) -> None:
    """Compile a load generator unless the program at hand is newer than its source."""
    if program.exists() and program.stat().st_mtime >= source.stat().st_mtime:
        return
    program.parent.mkdir(exist_ok=True)
    # Two runs may compile at once: each writes a file of its own, and the last to rename wins.
    fresh = program.with_suffix(f".{os.getpid()}")
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", "-o", fresh, source, "-lpthread"], check=True)
    fresh.replace(program)


def command(mode: str, port: int, **options: float | str) -> list[str]:
    flags = {"port": port, "size": MESSAGE_SIZE, **options}
    return [str(NSQLOAD), mode, *(word for key, value in flags.items() for word in (f"--{key}", str(value)))]


def run(mode: str, port: int, seconds: float, **options: float | str) -> Figures:
    """Load the server at `port` for `seconds`, or, with `count`, until that many were consumed.

    Raises LoadError if the server answered an error, closed a connection or hung.
    """
    with _started(command(mode, port, seconds=seconds, **options)) as process:
        return _result(process, timeout=seconds + 60)


@contextmanager
def idle(port: int, conns: int, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Hold `conns` connections that only answer heartbeats, for at most `seconds`.

    Raises LoadError on leaving if nsqload ended early or the server closed a connection.
    """
    with _held(command("idle", port, conns=conns, seconds=seconds)) as process:
        yield process


@contextmanager
def consuming(port: int, seconds: float, **options: float | str) -> Iterator[subprocess.Popen[str]]:
    """Consume for at most `seconds`. Raises LoadError like `idle`."""
    with _held(command("sub", port, seconds=seconds, **options)) as process:
        yield process


@contextmanager
def _held(argv: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    with _started(argv) as process:
        yield process
        process.terminate()
        _result(process, timeout=30)


@contextmanager
def _started(argv: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _result(process: subprocess.Popen[str], timeout: float) -> Figures:
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise LoadError(f"nsqload did not end within {timeout:g} s") from None
    if process.returncode != 0:
        raise LoadError(err.strip() or f"nsqload ended with {process.returncode}: {out.strip()}")
    printed = json.loads(out)
    latency = printed.get("latency_us", {})
    return Figures(
        published=printed["published"],
        consumed=printed["consumed"],
        pub_per_s=printed["pub_per_s"],
        sub_per_s=printed["sub_per_s"],
        p50_us=latency.get("p50"),
        p99_us=latency.get("p99"),
        p999_us=latency.get("p999"),
        max_us=latency.get("max"),
    )
