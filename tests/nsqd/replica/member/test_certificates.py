"""Members that know each other, and etcd them, by certificates."""

from __future__ import annotations

import json
import re
import shutil
import signal
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any, cast

import pytest

from tests.nsqd.replica.etcd_process import etcd, why_not
from tests.nsqd.replica.member.test_member import Start, start
from tests.nsqd.replica.processes import Member, until
from tests.security.certificates import Authority

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

__all__ = ["start"]


def test_members_reach_each_other_with_certificates_and_no_secret(start: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.sign("nsqd")
    flags = (f"--tls-cert={certificate}", f"--tls-key={key}", f"--tls-root-ca-file={authority.file}")
    flags = (*flags, "--tls-client-auth-policy=require-verify", "--https-address=127.0.0.1:0")
    a = start("a", "--replica-bootstrap", *flags)
    until(lambda: "REPLICA: serving term 1" in a.log)
    b = start("b", *flags)

    def ask(member: Member, path: str, method: str = "GET") -> dict[str, Any]:
        port = int(until(lambda: re.findall(r"HTTPS: listening on 127\.0\.0\.1:(\d+)", member.log))[-1])
        context = authority.client_context((certificate, key))
        connection = HTTPSConnection("127.0.0.1", port, context=context, timeout=30)
        try:
            connection.request(method, path, b"x" if method == "POST" else None)
            body = connection.getresponse().read()
        finally:
            connection.close()
        return cast(dict[str, Any], json.loads(body)) if body.startswith(b"{") else {"text": body}

    until(lambda: ask(b, "/replica")["state"] == "in-sync")
    assert ask(a, "/pub?topic=t", "POST") == {"text": b"OK"}
    sequence = ask(a, "/replica")["sequence"]
    until(lambda: ask(b, "/replica")["sequence"] >= sequence)
    ask(a, "/replica/handover", "POST")  # what b hears of it is sent before a is another process
    until(lambda: ask(b, "/replica")["serving"])
    assert ask(b, "/replica")["term"] == 2
    assert [each["body"] for each in ask(b, "/topic/peek?topic=t&from=0&limit=9")["messages"]] == ["x"]


def test_certificates_that_are_read_again_are_those_for_etcd_too(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    server, client, stranger = authority.sign("server"), authority.sign("client"), other.sign("client")
    certificate, key = tmp_path / "nsqd.pem", tmp_path / "nsqd.key"
    flags = ["--cert-file", str(server[0]), "--key-file", str(server[1])]
    flags += ["--client-cert-auth", "--trusted-ca-file", str(authority.file)]

    def use(shown: tuple[Path, Path]) -> None:
        for source, target in zip(shown, (certificate, key), strict=True):
            shutil.copy(source, target)

    use(stranger)
    with etcd(tmp_path / "etcd", *flags, scheme="https") as endpoint:
        tls = (f"--tls-cert={certificate}", f"--tls-key={key}", f"--tls-root-ca-file={authority.file}")
        a = Member(tmp_path, "a", endpoint, "--replica-bootstrap", "--https-address=", *tls)
        try:
            until(lambda: "cannot be founded yet" in a.log)
            use(client)
            a.process.send_signal(signal.SIGHUP)
            a.serves()
        finally:
            a.kill()
