"""`nsquark check`, `dump` and `backup` as processes, over what a real nsqd has left."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.daemon import Nsqd
from tests.data_path.conftest import SMALL_SEGMENTS, fill
from tests.tools.people.command import failure, nsquark, output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "data"
    with Nsqd(path, SMALL_SEGMENTS).start() as nsqd:
        asyncio.run(fill(nsqd))
        nsqd.stop()
    return path


@pytest.fixture
def data_path(made: Path, tmp_path: Path) -> Path:
    output("backup", str(made), str(tmp_path / "data"))
    return tmp_path / "data"


def newest(data_path: Path) -> Path:
    return max((data_path / "topics" / "orders").glob("*.log"))


def test_a_sound_directory_is_said_to_be_sound(data_path: Path) -> None:
    text = output("check", str(data_path))
    assert f"{data_path}: sound (2 topics, " in text
    assert "billing" in text
    found = json.loads(output("check", "--json", str(data_path)))
    assert (found["verdict"], found["findings"]) == ("sound", [])
    topics = {each["topic"]: each for each in found["topics"]}
    assert (topics["orders"]["first"], topics["orders"]["end"]) == (0, 201)


def test_the_exit_code_says_how_bad_it_is(data_path: Path) -> None:
    with newest(data_path).open("ab") as file:
        file.write(b"NQB1torn")
    done = nsquark("check", str(data_path))
    assert done.returncode == 3
    assert "warning" in done.stdout
    first = min((data_path / "topics" / "orders").glob("*.log"))
    damaged = bytearray(first.read_bytes())
    damaged[100] ^= 1
    first.unlink()  # the copy shares its blocks with the original
    first.write_bytes(damaged)
    done = nsquark("check", str(data_path))
    assert done.returncode == 1
    assert "ERROR   topics/orders/" in done.stdout
    assert "messages are lost" in done.stdout


def test_a_repair_needs_a_yes_and_says_what_it_did(data_path: Path) -> None:
    (data_path / "nsqd.dat").write_bytes(b"{broken")
    refused = nsquark("check", "--repair", str(data_path))
    assert refused.returncode == 2
    assert "say --yes" in refused.stderr
    assert (data_path / "nsqd.dat").exists()
    done = nsquark("check", "--repair", "--yes", str(data_path))
    assert done.returncode == 0, done
    assert "[moved to " in done.stdout
    assert [each.read_bytes() for each in data_path.glob("aside-*/nsqd.dat")] == [b"{broken"]


def test_what_is_no_data_directory_is_one_line(tmp_path: Path) -> None:
    assert f"{tmp_path} holds no data of nsqd" in failure("check", str(tmp_path))
    assert "is no directory" in failure("check", str(tmp_path / "nothing"))
    assert "is neither a segment" in failure("dump", str(tmp_path))
    assert "holds no data of nsqd" in failure("backup", str(tmp_path), str(tmp_path / "copy"))


def test_dump_prints_messages_in_each_form(data_path: Path) -> None:
    topic = str(data_path / "topics" / "orders")
    lines = output("dump", topic, "-n", "3").splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("1  ")
    assert lines[1].endswith("order 1 of 0 " + "x" * 60)
    assert output("dump", topic, "--from", "200", "--body") == "much later\n"
    (last,) = map(json.loads, output("dump", topic, "--from", "200", "--json").splitlines())
    assert (last["position"], last["body"]) == (200, "much later")
    assert last["due"] > last["timestamp"]
    assert output("dump", str(newest(data_path)), "-n", "1", "--body").endswith("\n")


def test_dump_into_a_closed_pipe_is_quiet(data_path: Path) -> None:
    import subprocess
    import sys

    topic = data_path / "topics" / "orders"
    line = f"{sys.executable} -m nsquark.tools.people dump {topic} --body | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30)
    assert done.stdout == "order 0 of 0 " + "x" * 60 + "\n"
    assert done.stderr == ""


def test_a_backup_of_a_running_nsqd_is_verified_and_starts(tmp_path: Path) -> None:
    with Nsqd(tmp_path / "data", SMALL_SEGMENTS).start() as nsqd:
        asyncio.run(fill(nsqd))
        found = json.loads(
            output("backup", "--verify", "--json", str(tmp_path / "data"), str(tmp_path / "copy"))
        )
        assert (found["topics"], found["verified"], found["skipped"]) == (2, True, [])
        assert found["linked"] >= 3
        again = failure("backup", str(tmp_path / "data"), str(tmp_path / "copy"))
        assert "exists already" in again
    with Nsqd(tmp_path / "copy", SMALL_SEGMENTS).start() as restored:
        _, answer = asyncio.run(restored.http("GET", "/stats?format=json&topic=orders&channel=archive"))
        (topic,) = json.loads(answer)["topics"]
        assert topic["channels"][0]["depth"] + topic["channels"][0]["deferred_count"] == 201
