import pytest

from nsquark.cli.flags import StartError
from nsquark.nsqd.options import Options, TlsRequired, parse
from nsquark.nsqd.options_check import validate


def refusal(*argv: str) -> str:
    with pytest.raises(StartError) as caught:
        validate(parse(argv))
    return str(caught.value)


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--max-deflate-level=0"], "--max-deflate-level must be [1,9]"),
        (["--max-deflate-level=10"], "--max-deflate-level must be [1,9]"),
        (["--node-id=-1"], "--node-id must be [0,1024)"),
        (["--node-id=1024"], "--node-id must be [0,1024)"),
        (["--worker-id=5150"], "--node-id must be [0,1024)"),
        (["--tls-required"], "cannot require TLS client connections without TLS key and cert"),
        (["--tls-required=tcp-https"], "cannot require TLS client connections without TLS key and cert"),
        (
            ["--tls-client-auth-policy=require"],
            "cannot require TLS client connections without TLS key and cert",
        ),
        (["--auth-http-request-method=put"], "--auth-http-request-method must be post or get"),
        (["--auth-http-request-method="], "--auth-http-request-method must be post or get"),
        (["--e2e-processing-latency-percentile=0"], "invalid E2E processing latency percentile: 0"),
        (["--e2e-processing-latency-percentile=0.5,1.5"], "invalid E2E processing latency percentile: 1.5"),
        (["--e2e-processing-latency-percentile=-0.5"], "invalid E2E processing latency percentile: -0.5"),
        (["--e2e-processing-latency-percentile=nan"], "invalid E2E processing latency percentile: NaN"),
        (["--mem-queue-size=-1"], "--mem-queue-size must be >= 0"),
        (["--max-msg-size=-5"], "--max-msg-size must be > 0"),
        (["--max-body-size=0"], "--max-body-size must be > 0"),
        (["--msg-timeout=-1s"], "--msg-timeout must be > 0"),
        (["--max-req-timeout=-1s"], "--max-req-timeout must be >= 0"),
        (["--max-rdy-count=-1"], "--max-rdy-count must be >= 0"),
        (["--sync-every=-1"], "--sync-every must be >= 0"),
        (["--broadcast-tcp-port=65536"], "--broadcast-tcp-port must be [0,65536)"),
        (["--max-bytes-per-file=0"], "--max-bytes-per-file must be > 0"),
        (["--sync-timeout=0"], "--sync-timeout must be > 0"),
        (["--statsd-address=a:1", "--statsd-interval=1s"], "--statsd-interval must be > 1s"),
        (["--statsd-address=8125"], '--statsd-address must be <addr>:<port>, not "8125"'),
        (["--statsd-address=a:b"], '--statsd-address must be <addr>:<port>, not "a:b"'),
        (["--statsd-address=a:0"], '--statsd-address must be <addr>:<port>, not "a:0"'),
        (
            ["--e2e-processing-latency-percentile=1", "--e2e-processing-latency-window-time=0"],
            "--e2e-processing-latency-window-time must be > 0",
        ),
        (["--retention-bytes=-1"], "--retention-bytes must be >= 0"),
        (["--drain-timeout=-1s"], "--drain-timeout must be >= 0"),
        (["--retention-time=-1s"], "--retention-time must be >= 0"),
        (["--channel-hold-timeout=-1s"], "--channel-hold-timeout must be >= 0"),
    ],
)
def test_what_nsqd_cannot_run_with_is_refused(argv: list[str], reason: str) -> None:
    assert refusal(*argv) == f"failed to instantiate nsqd - {reason}"


@pytest.mark.parametrize(
    "argv",
    [
        ["--max-deflate-level=1", "--node-id=0"],
        ["--max-deflate-level=9", "--node-id=1023"],
        ["--auth-http-request-method=post"],
        ["--statsd-interval=1s"],
        ["--e2e-processing-latency-window-time=0"],
        ["--mem-queue-size=0", "--sync-every=0"],
        ["--tls-required", "--tls-cert=c", "--tls-key=k"],
        ["--tls-required", "--tls-cert=c"],
        ["--e2e-processing-latency-percentile=1"],
    ],
    ids=" ".join,
)
def test_what_nsqd_can_run_with_is_taken(argv: list[str]) -> None:
    validate(parse(argv))


def test_a_client_auth_policy_requires_tls_of_everybody_unless_less_was_said() -> None:
    options = parse(["--tls-cert=c", "--tls-key=k", "--tls-client-auth-policy=require"])
    validate(options)
    assert options.tls_required is TlsRequired.EVERYBODY
    options = parse(["--tls-cert=c", "--tls-client-auth-policy=require", "--tls-required=tcp-https"])
    validate(options)
    assert options.tls_required is TlsRequired.TCP


def test_the_checks_are_made_in_nsqds_order() -> None:
    """All is wrong at first; what is told then is mended, until nothing is left to tell."""
    wrong = {
        "--max-deflate-level": ("0", "1", "--max-deflate-level must be [1,9]"),
        "--node-id": ("-1", "1", "--node-id must be [0,1024)"),
        "--tls-key": ("bad", "good", "failed to build TLS config - bad"),
        "--tls-root-ca-file": ("bad", "good", "failed to build client TLS config - bad"),
        "--auth-http-request-method": ("x", "get", "--auth-http-request-method must be post or get"),
        "--e2e-processing-latency-percentile": ("2", "1", "invalid E2E processing latency percentile: 2"),
        "--mem-queue-size": ("-1", "1", "--mem-queue-size must be >= 0"),
    }

    def build_tls(options: Options) -> None:
        if options.tls_key == "bad":
            raise ValueError("bad")

    def build_client_tls(options: Options) -> None:
        if options.tls_root_ca_file == "bad":
            raise ValueError("bad")

    values = {flag: bad for flag, (bad, _, _) in wrong.items()}
    for flag, (_, good, reason) in wrong.items():
        options = parse([f"{flag}={value}" for flag, value in values.items()])
        with pytest.raises(StartError) as caught:
            validate(options, build_tls, build_client_tls)
        assert str(caught.value) == f"failed to instantiate nsqd - {reason}"
        values[flag] = good
    validate(parse([f"{flag}={value}" for flag, value in values.items()]), build_tls, build_client_tls)


def test_certificates_are_built_only_where_there_are_any() -> None:
    built: list[str] = []
    for argv in ([], ["--tls-cert=c"], ["--tls-key=k"], ["--tls-root-ca-file=r"]):
        validate(parse(argv), lambda o: built.append("server"), lambda o: built.append("client"))
    assert built == ["server", "server", "client"]
