"""The command line: an error is a line that names flag and value, and Spark does not start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsquark.cli.flags import FlagError, HelpRequested, StartError
from nsquark.pipeline.__main__ import check_source, parse
from nsquark.pipeline.flags.subcommands import Archive
from tests.pipeline.command import Command
from tests.spark.broker import Broker

NSQD = "--nsqd-http-address=127.0.0.1:4151"


def options_of(*arguments: str) -> Archive:
    parsed = parse(["archive", NSQD, "--topic=t", "--output=/data/out", *arguments])
    assert parsed is not None
    assert isinstance(parsed[1], Archive)
    return parsed[1]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["archive"], "--lookupd-http-address: missing"),
        (["archive", NSQD], "--topic: missing"),
        (["archive", NSQD, "--topic=a b"], "--topic: 'a b' cannot be the name of a topic"),
        (["archive", NSQD, "--topic=t", "--topic-pattern=x"], "--topic-pattern: 'x': --topic is given too"),
        (
            ["archive", NSQD, "--lookupd-http-address=x:1", "--topic=t"],
            "--lookupd-http-address: --nsqd-http-",
        ),
        (["archive", NSQD, "--topic=t"], "--output: missing"),
        (
            ["archive", NSQD, "--topic=t", "--output=s3a://x/y"],
            "--output: 's3a://x/y' is not a path of a local",
        ),
        (["archive", NSQD, "--topic=t", "--output=o", "--channel=a b"], "--channel: 'a b' cannot be"),
        (["archive", NSQD, "--topic=t", "--output=o", "--value-type=x"], "--value-type: 'x' is neither"),
        (["archive", NSQD, "--topic=t", "--output=o", "--compact-min-files=1"], "--compact-min-files: 1 is"),
        (["replay", NSQD, "--topic=t"], "--publish: one of --publish and --original-topics"),
        (["replay", NSQD, "--topic=t", "--publish=u", "--rate=-1"], "--rate: -1 is negative"),
        (
            ["replay", NSQD, "--topic=t", "--publish=u", "--rate=1", "--speed=1"],
            "--speed: --rate is given too",
        ),
        (["replay", NSQD, "--archive=/nowhere/at/all", "--publish=u"], "--archive: '/nowhere/at/all' is no"),
        (["rollup", NSQD, "--topic=t"], "--output: missing: give it, or --publish, or both"),
        (["rollup", NSQD, "--topic=t", "--publish=u"], "--checkpoint: missing"),
        (["rollup", NSQD, "--topic=t", "--output=o", "--percentile=1.5"], "--percentile: 1.5 is not between"),
        (["dedupe", NSQD, "--topic=t", "--output=o", "--by=sender"], "--by: 'sender' is neither id nor body"),
        (["dedupe", NSQD, "--topic=t", "--publish=t"], "--publish: 't' is read, too"),
        (["dedupe", NSQD, "--topic-pattern=t.*", "--publish=tt"], "--publish: 'tt' is read, too: it matches"),
        (["rollup", NSQD, "--topic-pattern=(", "--publish=tt"], "--topic-pattern: '(' is no regular expr"),
        (["dedupe", NSQD, "--topic=t"], "--publish: one of --publish and --output"),
        (
            ["dedupe", NSQD, "--topic=t", "--publish=u", "--publish-delivery=twice"],
            "--publish-delivery: 'twice'",
        ),
        (["sql", NSQD, "--topic=t"], "--file: missing"),
        (["replay", NSQD, "--topic=t", "--publish=t"], "--publish: 't' is read, too"),
        (["replay", NSQD, "--topic-pattern=t.*", "--publish=tt"], "--publish: 'tt' is read, too: it matches"),
        (
            ["replay", NSQD, "--topic=t", "--original-topics"],
            "--original-topics: each topic of the log would",
        ),
        (["package"], "--output: missing"),
        (["package", "--output=nsquark.whl"], "--output: 'nsquark.whl' ends with none of"),
        (["package", "--output=nsquark.zip", "--with=pandas"], "--with: not with a .zip"),
        (["sql", NSQD, "--topic=t", "--file=/nowhere/at/all"], "--file: '/nowhere/at/all' is no file"),
    ],
)
def test_what_cannot_be_is_refused_with_its_flag(arguments: list[str], line: str) -> None:
    with pytest.raises(StartError) as caught:
        parse(arguments)
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "a subcommand is missing"),
        (["archve"], "no such subcommand: archve"),
        (["archive", "topic"], "no flag: topic"),
        (["archive", "--trigger=soon"], 'invalid value "soon" for flag -trigger: neither a duration'),
        (["archive", "--conf=a"], 'invalid value "a" for flag -conf: not name=value'),
        (["archive", "--nonsense"], "flag provided but not defined: -nonsense"),
    ],
)
def test_a_line_that_does_not_parse_shows_the_usage(arguments: list[str], line: str) -> None:
    with pytest.raises(FlagError) as caught:
        parse(arguments)
    assert str(caught.value).startswith(line)
    assert caught.value.status == 2
    assert caught.value.usage.startswith("Usage")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["archive", "--help"]])
def test_help_is_no_failure(arguments: list[str]) -> None:
    with pytest.raises(HelpRequested):
        parse(arguments)


def test_what_is_not_given_is_filled_in() -> None:
    options = options_of()
    assert options.channel == "nsq_to_spark_archive"
    assert options.checkpoint == "/data/out.checkpoint"
    assert (options.exact_files, options.trigger) == (True, 10.0)


def test_the_sources_own_errors_name_the_flags() -> None:
    with pytest.raises(StartError, match=r"^--max-bytes-per-trigger: '"):
        check_source(options_of("--max-offsets-per-trigger=5", "--max-bytes-per-trigger=5"))
    with pytest.raises(StartError, match=r"^--starting-offsets: 'soon' is neither"):
        check_source(options_of("--starting-offsets=soon"))
    with pytest.raises(StartError, match=r"^--source-opt fetchByte: unknown; did you mean 'fetchBytes'"):
        check_source(options_of("--source-opt=fetchByte=5"))
    with pytest.raises(StartError, match=r"^--tls-root-ca-file: '/nowhere/at/all' cannot be used"):
        check_source(options_of("--tls-root-ca-file=/nowhere/at/all"))


def test_a_topic_is_replayed_into_itself_elsewhere_or_from_an_archive(tmp_path: Path) -> None:
    elsewhere = "--publish-nsqd-http-address=127.0.0.1:5151"
    assert parse(["replay", NSQD, "--topic=t", "--publish=t", elsewhere])
    assert parse(["replay", NSQD, "--topic=t", "--original-topics", elsewhere])
    assert parse(["replay", NSQD, "--topic=t", "--publish=t", f"--archive={tmp_path}"])


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--ship=nsquark.zip",), "--ship: --master=local[*] has no executors on other machines"),
        (
            ("--master=yarn", "--ship=/nowhere/env.tgz"),
            "--ship: '/nowhere/env.tgz' is no file; `nsq_to_spark",
        ),
        (
            ("--master=yarn", "--ship=env.whl"),
            "--ship: 'env.whl' ends with none of .zip, .tar, .tar.gz, .tgz",
        ),
    ],
)
def test_what_cannot_be_shipped_is_refused(flags: tuple[str, ...], line: str) -> None:
    with pytest.raises(StartError) as caught:
        options_of(*flags)
    assert str(caught.value).startswith(line)


def test_a_package_is_written_without_java(tmp_path: Path) -> None:
    done = run("package", f"--output={tmp_path / 'nsquark.zip'}", PATH="/nowhere", JAVA_HOME="")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "nsquark.zip").stat().st_size > 100_000
    assert f"--ship={tmp_path / 'nsquark.zip'}" in done.stderr


def test_the_config_file_is_read(tmp_path: Path) -> None:
    config = tmp_path / "archive.toml"
    config.write_text('topic = "t,u"\nlookupd_http_address = ["h:4161"]\noutput = "/o"\ntrigger = "once"\n')
    parsed = parse(["archive", f"--config={config}"])
    assert parsed is not None
    assert (parsed[1].topic, parsed[1].available_now) == (["t", "u"], True)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nsquark.pipeline", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_process_says_one_line_and_ends() -> None:
    done = run("archive", NSQD)
    assert done.returncode == 1
    assert done.stderr.startswith("[nsq_to_spark] ")
    assert done.stderr.endswith("FATAL: --topic: missing: name a topic, or several with --topic-pattern\n")
    assert done.stderr.count("\n") == 1
    assert run("--version").stdout.startswith("nsq_to_spark v1.3.0 (built w/nsquark-")


def test_a_machine_without_java_is_told_so() -> None:
    done = run("archive", NSQD, "--topic=t", "--output=/o", PATH="/nowhere", JAVA_HOME="")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "there is no java on the PATH, and Spark needs Java 17" in done.stderr


def test_a_python_without_pyspark_is_told_so(tmp_path: Path) -> None:
    program = (
        "import importlib.util as u, sys; find = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'pyspark' else find(name, *more)\n"
        "from nsquark.pipeline.__main__ import main\n"
        f"sys.argv[1:] = ['archive', '{NSQD}', '--topic=t', '--output={tmp_path}']\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.endswith("FATAL: PySpark is not installed: pip install 'nsquark[spark]'\n")
    assert done.stderr.count("\n") == 1


def test_a_query_with_a_mistake_is_one_line(broker: Broker, tmp_path: Path) -> None:
    """Spark has to be asked, which says much more about it."""
    broker.publish("t", [b'{"id": 1}'])
    (tmp_path / "query.sql").write_text("SELECT nosuch FROM t")
    where = (f"--nsqd-http-address={broker.http_address}", f"--file={tmp_path / 'query.sql'}")
    with Command("sql", *where, "--topic=t", "--schema=t=id INT") as command:
        assert command.wait() == 1
    lines = [line for line in command.stderr.splitlines() if " INFO: " not in line]
    assert len(lines) == 1
    assert " FATAL: --file: " in lines[0]
    assert "`nosuch`" in lines[0]
