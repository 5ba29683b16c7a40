"""Flags, config file, and what nsqadmin refuses to start with."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsquark.cli.flags import StartError
from nsquark.nsqadmin.options import Options, normal_base_path, parse, secret, tls_context, validate
from tests.security.certificates import Authority

LOOKUPD = "--lookupd-http-address=127.0.0.1:4161"


def start(*flags: str) -> None:
    options = parse(flags)
    validate(options)
    tls_context(options)
    secret(options)


def refusal(*flags: str) -> str:
    with pytest.raises(StartError) as caught:
        start(*flags)
    prefix = "failed to instantiate nsqadmin - "
    assert str(caught.value).startswith(prefix)
    return str(caught.value).removeprefix(prefix)


def test_the_defaults_are_nsqs() -> None:
    options = Options()
    assert options.http_address == "0.0.0.0:4171"
    assert (options.http_client_connect_timeout, options.http_client_request_timeout) == (2.0, 5.0)
    assert (options.acl_http_header, options.allow_config_from_cidr) == ("X-Forwarded-User", "127.0.0.1/8")
    assert (options.statsd_prefix, options.statsd_interval) == ("nsq.%s", 60.0)
    assert (options.statsd_counter_format, options.statsd_gauge_format) == (
        "stats.counters.%s.count",
        "stats.gauges.%s",
    )


def test_the_config_file_has_nsqs_keys(tmp_path: Path) -> None:
    path = tmp_path / "nsqadmin.cfg"
    path.write_text(
        'nsqlookupd_http_addresses = ["127.0.0.1:4161"]\nadmin_users = ["ann"]\nstatsd_interval = "10s"\n'
    )
    options = parse([f"--config={path}", "--statsd-interval=20s"])
    assert options.lookupd_http_address == ["127.0.0.1:4161"]
    assert (options.admin_user, options.statsd_interval) == (["ann"], 20.0)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ((), "--nsqd-http-address or --lookupd-http-address required"),
        (
            (LOOKUPD, "--nsqd-http-address=127.0.0.1:4151"),
            "use --nsqd-http-address or --lookupd-http-address not both",
        ),
        (
            (LOOKUPD, "--http-client-tls-cert=a"),
            "--http-client-tls-key must be specified with --http-client-tls-cert",
        ),
        (
            (LOOKUPD, "--http-client-tls-key=a"),
            "--http-client-tls-cert must be specified with --http-client-tls-key",
        ),
        (
            ("--lookupd-http-address=host",),
            "failed to resolve --lookupd-http-address (host) - address host: missing port in address",
        ),
        (
            (LOOKUPD, "--http-client-request-timeout=0s"),
            "--http-client-request-timeout must be > 0, not 0.0 s",
        ),
    ],
)
def test_what_cannot_work_is_refused(flags: tuple[str, ...], reason: str) -> None:
    assert refusal(*flags) == reason


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--nsqd-http-address=no.such.host.invalid:1", "failed to resolve --nsqd-http-address"),
        ("--allow-config-from-cidr=10.0.0.0", "failed to parse --allow-config-from-cidr (10.0.0.0)"),
        ("--allow-config-from-cidr=x/8", "failed to parse --allow-config-from-cidr (x/8)"),
        ("--notification-http-endpoint=ftp://a", "failed to parse --notification-http-endpoint"),
        ("--grafana-url=javascript:alert(1)", "failed to parse --grafana-url"),
        ("--http-client-tls-root-ca-file=/nope", "failed to read TLS root CA file /nope"),
        ("--http-client-secret-file=/nope", "failed to read --http-client-secret-file /nope"),
        ("--http-client-secret=a\nb", "the secret for nsqds may hold printable ASCII only"),
    ],
)
def test_a_bad_value_is_refused_with_its_flag(flag: str, reason: str) -> None:
    others = () if flag.startswith("--nsqd-http") else (LOOKUPD,)
    assert refusal(flag, *others).startswith(reason)


def test_a_graphite_url_counts_only_when_it_is_asked() -> None:
    validate(parse([LOOKUPD, "--graphite-url=%zz"]))
    assert refusal(LOOKUPD, "--graphite-url=%zz", "--proxy-graphite").startswith(
        "failed to parse --graphite-url (%zz) - "
    )


def test_bad_tls_files_are_refused(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    assert refusal(LOOKUPD, f"--http-client-tls-root-ca-file={bad}") == f"failed to AppendCertsFromPEM {bad}"
    flags = (f"--http-client-tls-cert={bad}", f"--http-client-tls-key={bad}")
    assert refusal(LOOKUPD, *flags).startswith("failed to LoadX509KeyPair ")


def test_tls_is_left_to_the_system_unless_something_is_said(tmp_path: Path) -> None:
    assert tls_context(Options()) is None
    authority = Authority(tmp_path)
    context = tls_context(Options(http_client_tls_root_ca_file=str(authority.file)))
    assert context is not None
    assert len(context.get_ca_certs()) == 1
    assert context.check_hostname
    careless = tls_context(Options(http_client_tls_insecure_skip_verify=True))
    assert careless is not None
    assert not careless.check_hostname


def test_a_secret_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("open sesame\n")
    assert secret(Options(http_client_secret_file=str(path))) == "open sesame"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(StartError, match="is no text"):
        secret(Options(http_client_secret_file=str(path)))


@pytest.mark.parametrize(
    ("path", "normal"),
    [("", "/"), ("/", "/"), ("admin/nsq/", "/admin/nsq"), ("//a//b/../c", "/a/c"), ("/../x", "/x")],
)
def test_the_base_path_has_one_form(path: str, normal: str) -> None:
    assert normal_base_path(path) == normal
