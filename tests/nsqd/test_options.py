import dataclasses
import hashlib
import json
import os
import ssl
import zlib
from pathlib import Path

import pytest

from nsquark.cli.flags import FlagError, StartError, ValueRefused
from nsquark.nsqd.options import FLAGS, Options, TlsRequired, parse
from nsquark.nsqd.options_check import validate

HOST = os.uname().nodename

DEFAULTS = {
    "log_level": "info",
    "log_prefix": "[nsqd] ",
    "node_id": zlib.crc32(hashlib.md5(HOST.encode()).digest()) % 1024,
    "tcp_address": "0.0.0.0:4150",
    "http_address": "0.0.0.0:4151",
    "https_address": "0.0.0.0:4152",
    "broadcast_address": HOST,
    "broadcast_tcp_port": 0,
    "broadcast_http_port": 0,
    "lookupd_tcp_address": [],
    "auth_http_address": [],
    "auth_http_request_method": "get",
    "http_auth": False,
    "http_client_connect_timeout": 2.0,
    "http_client_request_timeout": 5.0,
    "data_path": "",
    "mem_queue_size": 10000,
    "max_bytes_per_file": 104857600,
    "sync_every": 2500,
    "sync_timeout": 2.0,
    "queue_scan_worker_pool_max": 4,
    "queue_scan_selection_count": 20,
    "msg_timeout": 60.0,
    "max_msg_timeout": 900.0,
    "max_msg_size": 1048576,
    "max_body_size": 5242880,
    "max_req_timeout": 3600.0,
    "max_heartbeat_interval": 60.0,
    "max_rdy_count": 2500,
    "max_output_buffer_size": 65536,
    "max_output_buffer_timeout": 30.0,
    "min_output_buffer_timeout": 0.025,
    "output_buffer_timeout": 0.25,
    "max_channel_consumers": 0,
    "statsd_address": "",
    "statsd_prefix": "nsq.%s",
    "statsd_interval": 60.0,
    "statsd_mem_stats": True,
    "statsd_udp_packet_size": 508,
    "statsd_exclude_ephemeral": False,
    "e2e_processing_latency_percentile": [],
    "e2e_processing_latency_window_time": 600.0,
    "tls_cert": "",
    "tls_key": "",
    "tls_client_auth_policy": "",
    "tls_root_ca_file": "",
    "tls_required": TlsRequired.NOBODY,
    "tls_min_version": ssl.TLSVersion.TLSv1,
    "deflate": True,
    "max_deflate_level": 6,
    "snappy": True,
    "topology_region": "",
    "topology_zone": "",
    "enable_experiment": [],
    # Ours.
    "import_": "on",
    "log_format": "text",
    "drain_timeout": 5.0,
    "retention_bytes": 0,
    "retention_time": 0.0,
    "channel_hold_timeout": 0.0,
    "archive_url": "",
    "archive_retention_bytes": 0,
    "archive_retention_time": 0.0,
    "archive_fetched_bytes": 1 << 30,
    "replica_of": "",
    "replica_secret_file": "",
    "replica_group": "",
    "replica_member": "",
    "replica_etcd": [],
    "replica_etcd_user": "",
    "replica_etcd_password_file": "",
    "replica_advertise": "",
    "replica_ack": "written",
    "replica_bootstrap": False,
    "replica_timeout": 2.0,
    "replica_lease": 3.0,
    "min_copies": 1,
    "staged_max_bytes": 10 << 30,
    "staged_timeout": 21600.0,
    "staged_app_timeout": 2592000.0,
    "max_attempts": 0,
}
WITHOUT_KEY = {"version": False, "config": "", "verbose": False, "worker_id": False}
OTHER_KEYS = {
    "import_": "import",
    "node_id": "id",
    "lookupd_tcp_address": "nsqlookupd_tcp_addresses",
    "auth_http_address": "auth_http_addresses",
    "e2e_processing_latency_percentile": "e2e_processing_latency_percentiles",
}


def refusal(*argv: str) -> str:
    with pytest.raises(StartError) as caught:
        validate(parse(argv))
    return str(caught.value)


def with_config(tmp_path: Path, text: str, *argv: str) -> list[str]:
    path = tmp_path / "nsqd.cfg"
    path.write_text(text)
    return [f"--config={path}", *argv]


# The flags.


def test_every_flag_of_nsqd_is_there_with_its_default() -> None:
    options = parse([])
    assert {f.name: getattr(options, f.name) for f in dataclasses.fields(options)} == {
        **DEFAULTS,
        **WITHOUT_KEY,
        "warnings": [],
    }
    validate(options)


def test_the_defaults_of_the_dataclass_alone_are_the_same() -> None:
    options = Options()
    assert {name: getattr(options, name) for name in DEFAULTS} == DEFAULTS


def test_every_option_has_its_key_and_those_without_are_none() -> None:
    assert set(FLAGS.keys) == {OTHER_KEYS.get(name, name) for name in DEFAULTS}
    assert {flag.field for flag in FLAGS.flags.values()} == DEFAULTS.keys() | WITHOUT_KEY.keys()


def test_the_names_that_go_gives_its_fields() -> None:
    names = {flag.field: flag.go_name for flag in FLAGS.flags.values()}
    assert {
        field: names[field] for field in ("node_id", "tcp_address", "tls_root_ca_file", "max_msg_size")
    } == {
        "node_id": "ID",
        "tcp_address": "TCPAddress",
        "tls_root_ca_file": "TLSRootCAFile",
        "max_msg_size": "MaxMsgSize",
    }
    assert names["lookupd_tcp_address"] == "NSQLookupdTCPAddresses"
    assert names["e2e_processing_latency_percentile"] == "E2EProcessingLatencyPercentiles"
    assert names["statsd_udp_packet_size"] == "StatsdUDPPacketSize"


def test_the_flags_of_a_typical_start() -> None:
    options = parse(
        [
            "--tcp-address=127.0.0.1:0",
            "-http-address=",
            "--data-path",
            "/data",
            "--lookupd-tcp-address=a:4160",
            "--lookupd-tcp-address=b:4160",
            "--msg-timeout=5s",
            "--mem-queue-size=0",
            "--snappy=false",
            "--e2e-processing-latency-percentile=0.95,1.0",
            "--retention-bytes=0x100000",
            "--retention-time=24h",
            "--log-level=DEBUG",
        ]
    )
    validate(options)
    assert options.tcp_address == "127.0.0.1:0"
    assert options.http_address == ""
    assert options.data_path == "/data"
    assert options.lookupd_tcp_address == ["a:4160", "b:4160"]
    assert options.msg_timeout == 5.0
    assert options.mem_queue_size == 0
    assert options.snappy is False
    assert options.e2e_processing_latency_percentile == [1.0, 0.95]
    assert (options.retention_bytes, options.retention_time) == (1048576, 86400.0)
    assert options.log_level == "debug"
    assert options.warnings == []


@pytest.mark.parametrize(
    ("word", "required"),
    [
        ("--tls-required", TlsRequired.EVERYBODY),
        ("--tls-required=true", TlsRequired.EVERYBODY),
        ("--tls-required=TRUE", TlsRequired.EVERYBODY),
        ("--tls-required=false", TlsRequired.NOBODY),
        ("--tls-required=tcp-https", TlsRequired.TCP),
        ("--tls-required=TCP-HTTPS", TlsRequired.TCP),
    ],
)
def test_tls_may_be_required_of_some_or_all(word: str, required: TlsRequired) -> None:
    assert parse([word]).tls_required is required


@pytest.mark.parametrize(
    ("word", "version"),
    [
        ("tls1.0", ssl.TLSVersion.TLSv1),
        ("TLS1.1", ssl.TLSVersion.TLSv1_1),
        ("tls1.2", ssl.TLSVersion.TLSv1_2),
        ("tls1.3", ssl.TLSVersion.TLSv1_3),
        ("", ssl.TLSVersion.TLSv1),
    ],
)
def test_the_tls_version_is_a_word_and_kept_as_pythons_number(word: str, version: ssl.TLSVersion) -> None:
    assert parse([f"--tls-min-version={word}"]).tls_min_version == version


@pytest.mark.parametrize(
    ("word", "text"),
    [
        (
            "--tls-min-version=tls9",
            'invalid value "tls9" for flag -tls-min-version: unknown tlsVersionOption "tls9"',
        ),
        (
            "--tls-min-version=ssl3.0",
            'invalid value "ssl3.0" for flag -tls-min-version: unknown tlsVersionOption "ssl3.0"',
        ),
        (
            "--tls-required=maybe",
            'invalid boolean value "maybe" for -tls-required: '
            'strconv.ParseBool: parsing "maybe": invalid syntax',
        ),
        ("--msg-timeout=60000", 'invalid value "60000" for flag -msg-timeout: parse error'),
        ("--statsd-interval=60", 'invalid value "60" for flag -statsd-interval: parse error'),
        ("--worker-id=x", 'invalid boolean value "x" for -worker-id: parse error'),
        ("--max-message-size=x", 'invalid value "x" for flag -max-message-size: parse error'),
    ],
)
def test_a_bad_value_is_a_usage_error(word: str, text: str) -> None:
    with pytest.raises(FlagError) as caught:
        parse([word])
    assert str(caught.value) == text
    assert caught.value.usage.startswith("Usage of nsqd:\n")


def test_the_usage_names_every_flag_in_order() -> None:
    usage = FLAGS.usage()
    names = [line.split()[0][1:] for line in usage.splitlines()[1:] if line.startswith("  -")]
    assert names == sorted([*FLAGS.flags, "max-message-size"])
    assert '  -log-prefix string\n    \tlog message prefix (default "[nsqd] ")\n' in usage
    assert "(default 1m0s)\n" in usage


# Old names.


def test_max_message_size_is_max_msg_size_with_a_warning() -> None:
    options = parse(["--max-message-size=5"])
    assert options.max_msg_size == 5
    assert options.warnings == ["--max-message-size is deprecated: use --max-msg-size"]


@pytest.mark.parametrize("text", ["0", "1", "5", "0x5"])
def test_worker_id_with_a_number_is_the_node_id_with_a_warning(text: str) -> None:
    options = parse([f"--worker-id={text}"])
    assert options.node_id == int(text, 0)
    assert options.worker_id is False
    assert options.warnings == ["--worker-id is deprecated: use --node-id"]


@pytest.mark.parametrize("word", ["--worker-id", "--worker-id=true", "--worker-id=false"])
def test_worker_id_without_a_number_does_nothing_but_warn(word: str) -> None:
    options = parse([word])
    assert options.node_id == DEFAULTS["node_id"]
    assert options.warnings == ["--worker-id is deprecated: use --node-id"]


def test_node_id_beats_worker_id_and_worker_id_beats_the_file(tmp_path: Path) -> None:
    assert parse(["--node-id=3", "--worker-id=4"]).node_id == 3
    assert parse(with_config(tmp_path, "id = 5", "--worker-id=4")).node_id == 4


def test_a_separate_number_after_worker_id_ends_the_flags_as_in_nsqd_but_with_a_warning() -> None:
    options = parse(["--worker-id", "5"])
    assert options.node_id == DEFAULTS["node_id"]
    assert options.warnings[1] == "ignored, since they are no flags: 5"


def test_flags_behind_another_word_are_not_ignored() -> None:
    with pytest.raises(StartError) as caught:
        parse(["--verbose", "true", "--data-path=/srv", "more", "-id", "7"])
    assert str(caught.value) == '"true" is no flag, and would hide what follows: --data-path=/srv -id'
    assert parse(["--version", "word", "--data-path=/srv"]).version


def test_verbose_does_nothing_but_warn() -> None:
    options = parse(["--verbose"])
    assert options.log_level == "info"
    assert options.warnings == ["--verbose is deprecated: it has no effect, use --log-level=debug"]


# The config file.


def test_the_config_file_goes_by_config_keys(tmp_path: Path) -> None:
    text = """
        id = 7
        nsqlookupd_tcp_addresses = ["a:4160", "b:4160"]
        auth_http_addresses = "x:1,y:2"
        msg_timeout = 5000
        sync_timeout = "1.5s"
        e2e_processing_latency_percentiles = [0.5, 1.0]
        tls_required = "tcp-https"
        tls_min_version = "TLS1.2"
        log_level = "WARN"
        deflate = "false"
        max_rdy_count = "9"
        enable_experiment = ["topology-aware-consumption"]
        retention_time = "1h"
        node_id = 8
        worker_id = 5150
        """
    options = parse(with_config(tmp_path, text, "--max-rdy-count=10"))
    assert options.node_id == 7
    assert options.lookupd_tcp_address == ["a:4160", "b:4160"]
    assert options.auth_http_address == ["x:1", "y:2"]
    assert (options.msg_timeout, options.sync_timeout, options.retention_time) == (5.0, 1.5, 3600.0)
    assert options.e2e_processing_latency_percentile == [0.5, 1.0]
    assert options.tls_required is TlsRequired.TCP
    assert options.tls_min_version == ssl.TLSVersion.TLSv1_2
    assert (options.log_level, options.deflate, options.max_rdy_count) == ("warn", False, 10)
    assert options.enable_experiment == ["topology-aware-consumption"]


@pytest.mark.parametrize(
    ("text", "required"),
    [("true", TlsRequired.EVERYBODY), ("false", TlsRequired.NOBODY), ('"true"', TlsRequired.EVERYBODY)],
)
def test_tls_required_in_the_file_may_be_a_boolean(tmp_path: Path, text: str, required: TlsRequired) -> None:
    assert parse(with_config(tmp_path, f"tls_required = {text}")).tls_required is required


def test_an_empty_tls_version_in_the_file_is_the_default(tmp_path: Path) -> None:
    assert parse(with_config(tmp_path, 'tls_min_version = ""')).tls_min_version == 769


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ('tls_required = "maybe"', "failed parsing tls_required maybe"),
        ('tls_min_version = "tls9"', "failed parsing tls_min_version tls9"),
        ("tls_min_version = 1.2", "failed parsing tls_min_version 1.2"),
        ('log_level = "loud"', "failed parsing log_level loud"),
        ('log_level = "x"\ntls_required = 5\ntls_min_version = "y"', "failed parsing tls_required 5"),
        ('log_level = "x"\ntls_min_version = "y"', "failed parsing tls_min_version y"),
    ],
)
def test_bad_words_in_the_file_are_refused_first(tmp_path: Path, text: str, refused: str) -> None:
    argv = with_config(tmp_path, text + "\nmsg_timeout = true", "--log-level=info", "--tls-required=false")
    assert refusal(*argv) == refused


def test_a_value_of_the_wrong_type_names_gos_field(tmp_path: Path) -> None:
    with pytest.raises(ValueRefused) as caught:
        parse(with_config(tmp_path, 'msg_timeout = "60"'))
    assert str(caught.value) == (
        "ERROR: Resolve failed to coerce value 60 (1m0s) for field MsgTimeout"
        ' - time: missing unit in duration "60"'
    )


def test_config_values_are_ready_for_json_or_text() -> None:
    options = parse(
        ["--lookupd-tcp-address=a:1", "--e2e-processing-latency-percentile=0.9", "--tls-required=tcp-https"]
    )
    expected = {
        "id": DEFAULTS["node_id"],
        "log_prefix": "[nsqd] ",
        "nsqlookupd_tcp_addresses": ["a:1"],
        "auth_http_addresses": [],
        "e2e_processing_latency_percentiles": [0.9],
        "msg_timeout": 60_000_000_000,
        "min_output_buffer_timeout": 25_000_000,
        "retention_time": 0,
        "channel_hold_timeout": 0,
        "archive_url": "",
        "archive_retention_bytes": 0,
        "archive_retention_time": 0,
        "archive_fetched_bytes": 1 << 30,
        "replica_of": "",
        "replica_secret_file": "",
        "max_attempts": 0,
        "snappy": True,
        "tls_required": 1,
        "tls_min_version": 769,
        "log_level": 2,
    }
    values = {key: options.config_value(key) for key in expected}
    assert values == expected
    assert json.dumps(values["tls_required"]) == "1"
    json.dumps([options.config_value(key) for key in FLAGS.keys])


@pytest.mark.parametrize(
    ("word", "number"), [("debug", 1), ("info", 2), ("warn", 3), ("error", 4), ("fatal", 5)]
)
def test_log_levels_are_numbered(word: str, number: int) -> None:
    assert parse([f"--log-level={word}"]).config_value("log_level") == number


@pytest.mark.parametrize(
    "key", ["node_id", "lookupd_tcp_address", "msg-timeout", "version", "config", "warnings", ""]
)
def test_what_is_no_config_key_has_no_value(key: str) -> None:
    with pytest.raises(KeyError):
        parse([]).config_value(key)


def test_a_changed_option_shows_its_new_value() -> None:
    options = parse([])
    options.lookupd_tcp_address = ["b:1"]
    options.log_level = "debug"
    assert options.config_value("nsqlookupd_tcp_addresses") == ["b:1"]
    assert options.config_value("log_level") == 1


@pytest.mark.parametrize(
    ("address", "prefix", "expanded"),
    [
        ("10.0.0.1", "nsq.%s", "nsq.10_0_0_1_4151."),
        ("::1", "nsq.%s.", "nsq.[__1]_4151."),
        ("host", "%s.x.%s", "host_4151.x.host_4151."),
        ("host", "", ""),
        ("host", "plain", "plain."),
    ],
)
def test_the_ports_complete_the_statsd_prefix(address: str, prefix: str, expanded: str) -> None:
    options = parse([f"--broadcast-address={address}", f"--statsd-prefix={prefix}"])
    options.fill_in(4150, 4151)
    assert options.config_value("statsd_prefix") == expanded
    assert (options.broadcast_tcp_port, options.broadcast_http_port) == (4150, 4151)


def test_given_broadcast_ports_beat_the_real_ones() -> None:
    options = parse(["--broadcast-address=h", "--broadcast-tcp-port=1", "--broadcast-http-port=2"])
    options.fill_in(4150, 4151)
    assert (options.broadcast_tcp_port, options.broadcast_http_port) == (1, 2)
    assert options.statsd_prefix == "nsq.h_2."


# The import of what Go's nsqd has left.


@pytest.mark.parametrize(
    ("text", "value"),
    [('"on"', "on"), ('"off"', "off"), ('"Check"', "check"), ("true", "on"), ("false", "off")],
)
def test_import_in_the_config_file(tmp_path: Path, text: str, value: str) -> None:
    assert parse(with_config(tmp_path, f"import = {text}")).import_ == value
    assert parse(with_config(tmp_path, f"import = {text}", "--import=off")).import_ == "off"


@pytest.mark.parametrize("word", ["", "yes", "checks"])
def test_import_is_one_of_three_words(word: str, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"\(on, off, check\)"):
        parse([f"--import={word}"])
    with pytest.raises(StartError, match=r"\(on, off, check\)"):
        parse(with_config(tmp_path, f'import = "{word}"'))


@pytest.mark.parametrize("text", ['["on"]', "1", "0.5"])
def test_import_is_no_number_and_no_list(text: str, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="invalid value type"):
        parse(with_config(tmp_path, f"import = {text}"))
