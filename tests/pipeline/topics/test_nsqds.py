"""What the nsqds are asked before Spark starts. No test here starts Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark.cli.flags import StartError
from nsquark.pipeline.__main__ import parse
from nsquark.pipeline.topics.nsqds import check_nsqds
from tests.daemon import Nsqlookupd
from tests.pipeline.test_main import run
from tests.spark.broker import Broker


def check(*arguments: str) -> None:
    parsed = parse(arguments)
    assert parsed is not None
    check_nsqds(parsed[1])


def test_an_unknown_topic_is_refused(broker: Broker, nsqlookupd: Nsqlookupd, tmp_path: Path) -> None:
    broker.publish("t", [b"x"])
    out, nsqd = f"--output={tmp_path / 'out'}", f"--nsqd-http-address={broker.http_address}"
    check("archive", nsqd, "--topic=t", out)
    with pytest.raises(StartError, match=rf"^--topic: no topic 'u' at {broker.tcp_address}$"):
        check("archive", nsqd, "--topic=t", "--topic=u", out)
    with pytest.raises(StartError, match=r"^--topic-pattern: no topic matches /u\.\*/$"):
        check("archive", nsqd, "--topic-pattern=u.*", out)
    lookupd = f"--lookupd-http-address={nsqlookupd.http_address}"
    with pytest.raises(StartError, match=rf"^--topic: no topic 't' at http://{nsqlookupd.http_address}$"):
        check("archive", lookupd, "--topic=t", out)
    with pytest.raises(StartError, match=r"^--topic: no topic 'u' at "):
        check("replay", nsqd, "--topic=u", "--publish=v")
    ending = f'--ending-offsets={{"t": {{"{broker.tcp_address}": 9}}}}'
    with pytest.raises(StartError, match=r"^--ending-offsets: topic 't' at nsqd .* ends at 1, before 9$"):
        check("replay", nsqd, "--topic=t", "--publish=v", ending)


def test_an_nsqd_that_does_not_answer_is_refused(broker: Broker, tmp_path: Path) -> None:
    broker.publish("t", [b"x"])
    nsqd, out = f"--nsqd-http-address={broker.http_address}", f"--output={tmp_path / 'out'}"
    away = "127.0.0.1:1"
    for arguments in (
        ("archive", f"--nsqd-http-address={away}", "--topic=t", out),
        ("archive", f"--lookupd-http-address={away}", "--topic=t", out),
        ("replay", f"--nsqd-http-address={away}", "--topic=t", "--publish=u"),
        ("replay", nsqd, "--topic=t", "--publish=u", f"--publish-nsqd-http-address={away}"),
        ("replay", f"--nsqd-http-address={away}", f"--archive={tmp_path}", "--publish=u"),
    ):
        with pytest.raises(StartError, match=rf"^http://{away} cannot be reached: "):
            check(*arguments)
    # One that answers is enough.
    check("archive", nsqd, f"--nsqd-http-address={away}", "--topic=t", out)


def test_a_query_that_goes_on_may_wait_for_its_nsqd(tmp_path: Path) -> None:
    flags = ("--nsqd-http-address=127.0.0.1:1", "--topic=t", f"--output={tmp_path / 'out'}")
    offsets = tmp_path / "out.checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    with pytest.raises(StartError):
        check("archive", *flags)
    (offsets / "0").touch()
    check("archive", *flags)
    with pytest.raises(StartError):  # it would have to know at once where the logs end
        check("archive", *flags, "--trigger=once")
    check("archive", *flags, "--exact-files=false", "--checkpoint=hdfs://host/checkpoint")


def test_a_mistake_is_told_before_a_jvm_is_started(broker: Broker, tmp_path: Path) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    java.chmod(0o755)
    flags = (f"--nsqd-http-address={broker.http_address}", "--topic=nosuch", f"--output={tmp_path / 'out'}")
    done = run("archive", *flags, JAVA_HOME=str(java.parents[1]))
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if " INFO: " not in line]
    assert [line.partition(" FATAL: ")[2] for line in lines] == [
        f"--topic: no topic 'nosuch' at {broker.tcp_address}"
    ]
    assert not (tmp_path / "started").exists()
