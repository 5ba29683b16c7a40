"""Certificates are read at the start and again on request; bad ones change nothing."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from nsquark.nsqd.options import Options
from nsquark.nsqd.protocol.certificates import Certificates
from tests.security.certificates import Authority


@pytest.fixture
def options(tmp_path: Path) -> Options:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    return Options(tls_cert=str(certificate), tls_key=str(key), tls_root_ca_file=str(authority.file))


def test_tls_is_offered_once_the_files_are_read(options: Options) -> None:
    certificates = Certificates(options)
    assert not certificates.offered
    certificates.load_server(options)
    assert certificates.offered
    assert certificates.new_stream() is not certificates.new_stream()


@pytest.mark.parametrize("content", [None, b"", b"nonsense"])
def test_files_that_do_not_read_change_nothing(
    options: Options, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = Certificates(options)
    certificates.load_server(options)
    certificates.load_client(options)
    client = certificates.client_context()
    if content is None:
        Path(options.tls_key).unlink()
    else:
        Path(options.tls_key).write_bytes(content)
    certificates.reload()
    assert "the certificates stay as they are" in caplog.text
    assert certificates.offered
    assert certificates.client_context() is client
    with pytest.raises(ValueError, match=r".+"):
        Certificates(options).load_server(options)


def test_good_files_are_taken_over(options: Options, tmp_path: Path) -> None:
    certificates = Certificates(options)
    certificates.load_client(options)
    before = certificates.client_context()
    certificates.reload()
    assert certificates.client_context() is not before
    assert certificates.client_context().minimum_version >= ssl.TLSVersion.TLSv1_2
