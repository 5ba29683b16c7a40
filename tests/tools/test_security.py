"""TLS, AUTH and compression by `--producer-opt` and `--consumer-opt`, with a real nsqd and auth server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.daemon import Nsqd
from tests.security.auth_server import AuthServer, entry
from tests.security.certificates import Authority
from tests.tools.programs import run

GIVEN = b"".join(b"%d\x00\r%b\n" % (number, b"x" * (number % 100)) for number in range(5000))


class Guarded(NamedTuple):
    nsqd: Nsqd
    authority: Authority

    def options(self, secret: str, *more: str) -> list[str]:
        return [
            "tls_v1",
            f"tls_root_ca_file,{self.authority.file}",
            f"tls_cert,{self.authority.folder / 'client.pem'}",
            f"tls_key,{self.authority.folder / 'client.key'}",
            f"auth_secret,{secret}",
            *more,
        ]

    def publishing(self, secret: str, *more: str) -> list[str]:
        options = [f"--producer-opt={option}" for option in self.options(secret, *more)]
        return ["--topic=t", f"--nsqd-tcp-address={self.nsqd.tcp_address}", *options]

    def consuming(self, secret: str, *more: str) -> list[str]:
        options = [f"--consumer-opt={option}" for option in self.options(secret, *more)]
        return ["--topic=t", f"--nsqd-tcp-address={self.nsqd.tcp_address}", *options]

    def reading(self, secret: str) -> list[str]:
        options = [f"--consumer-opt={option}" for option in self.options(secret)]
        return ["--topic=t", f"--nsqd-http-address={self.nsqd.http_address}", *options]


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    """An nsqd that lets no client in without a certificate and a secret, over HTTP too."""
    authority = Authority(tmp_path / "certificates")
    certificate, key = authority.sign("server")
    authority.sign("client")
    secrets = {"everything": [entry()], "nothing here": [entry("^other$")]}
    async with AuthServer(secrets) as auth:
        flags = (
            f"--tls-cert={certificate}",
            f"--tls-key={key}",
            f"--tls-root-ca-file={authority.file}",
            "--tls-client-auth-policy=require-verify",
            "--https-address=127.0.0.1:0",
            f"--auth-http-address={auth.address}",
            "--http-auth",
        )
        with Nsqd(tmp_path / "data", *flags).start() as nsqd:
            yield Guarded(nsqd, authority)


@pytest.mark.parametrize("compression", [(), ("snappy",), ("deflate", "deflate_level,3"), ("snappy,true",)])
async def test_messages_pass_through_every_layer(guarded: Guarded, compression: tuple[str, ...]) -> None:
    ended = await run("to_nsq", *guarded.publishing("everything", *compression), given=GIVEN)
    assert ended.code == 0, ended.err
    flags = guarded.consuming("everything", *compression)
    ended = await run("nsq_tail", *flags, "--channel=c", "-n=5000")
    assert ended.code == 0, ended.err
    assert ended.out == GIVEN
    assert "everything" not in ended.err


async def test_the_log_is_read_over_https_with_the_secret(guarded: Guarded) -> None:
    assert (await run("to_nsq", *guarded.publishing("everything"), given=GIVEN)).code == 0
    ended = await run("nsq_tail", *guarded.reading("everything"), "--from=earliest", "--to=latest")
    assert ended == (0, GIVEN, "")
    ended = await run("nsq_tail", *guarded.reading("nothing here"), "--from=earliest", "--to=latest")
    assert (ended.code, ended.out, len(ended.said)) == (1, b"", 1)
    assert "UNAUTHORIZED" in ended.said[0]
    assert "nothing here" not in ended.err


async def test_a_wrong_secret_or_certificate_is_one_line(guarded: Guarded, tmp_path: Path) -> None:
    ended = await run("to_nsq", *guarded.publishing("nothing here"), given=b"x\n")
    assert (ended.code, ended.out) == (1, b"")
    assert "E_UNAUTHORIZED" in ended.said[-1]
    ended = await run("to_nsq", *guarded.publishing("unknown"), given=b"x\n")
    assert (ended.code, ended.out) == (1, b"")
    assert "E_AUTH_FAILED" in ended.said[-1]
    ended = await run("nsq_tail", *guarded.consuming("unknown"))
    assert (ended.code, ended.out) == (1, b"")
    assert "E_AUTH_FAILED" in ended.said[-1]
    other = Authority(tmp_path / "other")
    flags = [*guarded.publishing("everything"), f"--producer-opt=tls_root_ca_file,{other.file}"]
    ended = await run("to_nsq", *flags, given=b"x\n")
    assert (ended.code, len(ended.said)) == (1, 1)
    assert "certificate verify failed" in ended.said[0].lower()
    plain = ("--topic=t", f"--nsqd-tcp-address={guarded.nsqd.tcp_address}")
    ended = await run("to_nsq", *plain, given=b"x\n")
    assert ended.code == 1
    assert guarded.nsqd.tcp_address in ended.said[-1]


async def test_a_file_that_is_not_there_is_named(nsqd: Nsqd) -> None:
    flags = ("--topic=t", f"--nsqd-tcp-address={nsqd.tcp_address}")
    ended = await run("to_nsq", *flags, "--producer-opt=tls_v1", "--producer-opt=tls_root_ca_file,/nowhere")
    assert (ended.code, len(ended.said)) == (1, 1)
    assert "/nowhere" in ended.said[0]
