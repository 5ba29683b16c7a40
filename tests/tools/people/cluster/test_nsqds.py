"""Commands over several nsqds, which an nsqlookupd knows; TLS and secrets on the way there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.daemon import Nsqd, Nsqlookupd, until
from tests.security.auth_server import AuthServer, entry
from tests.security.certificates import Authority
from tests.tools.people.command import Running, failure, nsquark, output


@pytest.fixture
def nsqds(nsqlookupd: Nsqlookupd, tmp_path: Path) -> Iterator[list[Nsqd]]:
    flags = ["--broadcast-address=127.0.0.1", f"--lookupd-tcp-address={nsqlookupd.tcp_address}"]
    with Nsqd(tmp_path / "a", *flags).start() as a, Nsqd(tmp_path / "b", *flags).start() as b:
        yield [a, b]


@pytest.fixture
async def at(nsqlookupd: Nsqlookupd, nsqds: list[Nsqd]) -> list[str]:
    """The topic `t` is on both, with four messages."""
    for nsqd in nsqds:
        await nsqd.post("/topic/create?topic=t")
        await nsqd.post("/channel/create?topic=t&channel=ch")
    for number in range(4):
        await nsqds[number % 2].post("/pub?topic=t", b"%d" % number)

    async def registered() -> bool:
        status, answer = await nsqlookupd.http("GET", "/lookup?topic=t")
        return status == 200 and len(json.loads(answer)["producers"]) == 2

    await until(registered)
    return ["--lookupd-http", nsqlookupd.http_address]


async def test_figures_are_added_up(at: list[str], nsqds: list[Nsqd]) -> None:
    (topic,) = json.loads(output("stat", "t", "--json", *at))
    assert (topic["messages"], topic["channels"][0]["depth"]) == (4, 4)
    assert sorted(topic["nsqds"]) == sorted(nsqd.http_address for nsqd in nsqds)
    assert output("topic", "list", *at).splitlines()[1].split() == ["t", "0", "1", "4", "2"]


async def test_a_log_is_merged_by_time(at: list[str]) -> None:
    assert output("tail", "t", "--from", "earliest", "--to", "latest", *at) == "0\n1\n2\n3\n"
    assert [json.loads(line)["body"] for line in output("peek", "t", "--json", *at).splitlines()] == list(
        "0123"
    )
    ready = [json.loads(line)["body"] for line in output("peek", "t", "ch", "--json", *at).splitlines()]
    assert ready == list("0123")


async def test_a_tail_follows_all_of_them(at: list[str], nsqds: list[Nsqd]) -> None:
    with Running("tail", "t", "--from", "earliest", "-n", "6", *at) as running:
        for expected in "0123":
            assert await asyncio.to_thread(running.line) == f"{expected}\n"
        for nsqd in nsqds:
            await nsqd.post("/pub?topic=t", b"more")
        stdout, stderr = await asyncio.to_thread(running.process.communicate)
    assert (stdout, stderr, running.process.returncode) == (b"more\nmore\n", b"", 0)


async def test_changes_are_made_everywhere(at: list[str], nsqlookupd: Nsqlookupd) -> None:
    assert "paused topic 't' at 2 nsqds" in output("topic", "pause", "t", *at)
    assert "unpaused topic 't' at 2 nsqds" in output("topic", "unpause", "t", *at)
    assert "emptied channel 'ch' of topic 't' at 2 nsqds" in output("channel", "empty", "t", "ch", "-y", *at)
    assert output("channel", "seek", "t", "ch", "earliest", "-y", *at).count("with a depth of 2") == 2
    assert "created" in output("channel", "create", "t", "new", "--from", "latest", *at)
    (topic,) = json.loads(output("stat", "t", "--json", *at))
    assert [(each["channel"], each["depth"]) for each in topic["channels"]] == [("ch", 4), ("new", 0)]
    output("channel", "delete", "t", "new", "-y", *at)
    assert (await nsqlookupd.get("/channels?topic=t"))["channels"] == ["ch"]
    assert "at 2 nsqds" in output("topic", "delete", "t", "-y", *at)
    assert (await nsqlookupd.get("/topics"))["topics"] == []


async def test_a_topic_is_created_at_the_nsqlookupd(at: list[str], nsqlookupd: Nsqlookupd) -> None:
    assert "at nsqlookupd" in output("topic", "create", "new", *at)
    assert "new" in output("topic", "list", *at)
    output("topic", "delete", "new", "-y", *at)
    assert (await nsqlookupd.get("/topics"))["topics"] == ["t"]
    assert "does not know topic 'new'" in failure("stat", "new", *at)


async def test_a_position_needs_one_nsqd(at: list[str]) -> None:
    for words in (
        ["tail", "t", "--from", "1"],
        ["peek", "t", "--from", "1"],
        ["channel", "seek", "t", "ch", "1", "-y"],
    ):
        assert "belongs to one nsqd" in failure(*words, *at)
    assert "--nsqd-http" in failure("replay", "t", "--into", "u", *at)


async def test_an_nsqd_that_is_away_is_told_and_the_others_answer(at: list[str], nsqds: list[Nsqd]) -> None:
    where = ["--nsqd-http", nsqds[0].http_address, "--nsqd-http", nsqds[1].http_address]
    nsqds[1].kill()
    done = nsquark("stat", "t", "--json", *where)
    assert done.returncode == 1
    assert done.stderr == f"nsquark: nsqd {nsqds[1].http_address} does not answer: Connection refused\n"
    assert json.loads(done.stdout)[0]["messages"] == 2


async def test_publishing_goes_to_all_in_turn(at: list[str]) -> None:
    output("pub", "spread", "--rate", "50", *at, stdin=b"x\n" * 4)  # a rate makes small batches
    (topic,) = json.loads(output("stat", "spread", "--json", *at))
    assert topic["messages"] == 4
    assert len(topic["nsqds"]) == 2


# ---- TLS and secrets


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[tuple[Nsqd, Authority, AuthServer]]:
    """An nsqd that speaks TLS only and lets in a client with the secret `sesame`."""
    authority = Authority(tmp_path / "tls")
    authority.sign("server")
    async with AuthServer() as auth:
        auth.secrets["sesame"] = [entry()]
        flags = [
            f"--tls-cert={authority.folder / 'server.pem'}", f"--tls-key={authority.folder / 'server.key'}",
            "--tls-required=true", "--https-address=127.0.0.1:0",
            f"--auth-http-address={auth.address}", "--http-auth",
        ]  # fmt: skip
        with Nsqd(tmp_path / "data", *flags).start() as nsqd:
            yield nsqd, authority, auth


async def test_tls_and_a_secret(guarded: tuple[Nsqd, Authority, AuthServer], tmp_path: Path) -> None:
    nsqd, authority, _ = guarded
    secret = tmp_path / "secret"
    secret.write_text("sesame\n")
    at = ["--nsqd-http", nsqd.http_address, "--nsqd-tcp", nsqd.tcp_address]
    trusted = [*at, "--tls-ca", str(authority.file), "--secret-file", str(secret)]

    async def run(*words: str) -> str:
        return await asyncio.to_thread(output, *words)

    await run("pub", "t", "hello", *trusted)
    assert await run("tail", "t", "--from", "earliest", "--to", "latest", *trusted) == "hello\n"
    assert "hello" in await run("peek", "t", *trusted)
    await run("replay", "t", "--into", "u", *trusted)
    line = await asyncio.to_thread(failure, "stat", *at)
    assert "certificate verify failed" in line
    assert "sesame" not in line
    insecure = await asyncio.to_thread(nsquark, "stat", *at, "--tls-insecure", NSQUARK_SECRET="sesame")
    assert insecure.returncode == 0
    line = await asyncio.to_thread(failure, "pub", "t", "x", *at, "--tls-ca", str(authority.file))
    assert nsqd.tcp_address in line


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    where = ["--nsqd-http", "127.0.0.1:1", "--nsqd-tcp", "127.0.0.1:1"]
    assert "/no/such/ca" in failure("pub", "t", "x", *where, "--tls-ca", "/no/such/ca", status=2)
    assert "/no/such/secret" in failure("pub", "t", "x", *where, "--secret-file", "/no/such/secret", status=2)
