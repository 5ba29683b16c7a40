"""The flags of tables: a mistake is a line that names the flag, before Spark starts."""

from __future__ import annotations

import importlib.util

import pytest

from nsquark.cli.flags import StartError
from nsquark.pipeline.__main__ import parse
from nsquark.pipeline.flags.subcommands import Archive
from nsquark.pipeline.flags.table_flags import file_options, store_options

ARCHIVE = ("archive", "--nsqd-http-address=127.0.0.1:4151", "--topic=t")


def options_of(*flags: str) -> Archive:
    parsed = parse([*ARCHIVE, *flags])
    assert parsed is not None
    assert isinstance(parsed[1], Archive)
    return parsed[1]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            ["--output=s3://b/o"],
            "--output: 's3://b/o' is not a path of a local file system; --manif",
        ),
        (["--manifest"], "--output: missing"),
        (["--manifest", "--output=s3://b/o"], "--checkpoint: missing: it is Spark's, which may not know 's3"),
        (["--manifest", "--output=o", "--format=orc"], "--manifest: not with --format=orc"),
        (["--manifest", "--output=o", "--format=delta"], "--manifest: not with --format=delta"),
        (["--manifest", "--output=o", "--exact-files=false"], "--manifest: not with --exact-files=false"),
        (["--manifest", "--output=o", "--format-opt=path=x"], "--format-opt: 'path' is none of compression"),
        (["--manifest", "--output=o", "--format-opt=compression=x"], "--format-opt: compression='x' is not"),
        (
            ["--manifest", "--output=o", "--format-opt=compression_level=x"],
            "--format-opt: compression_level",
        ),
        (["--format=delta"], "--output: missing"),
        (["--format=delta", "--output=o", "--table=n.t"], "--table: only with --format=iceberg"),
        (["--format=iceberg", "--output=o"], "--output: not with --format=iceberg"),
        (["--format=iceberg", "--checkpoint=c"], "--table: '' is not namespace.name"),
        (["--format=iceberg", "--table=t"], "--table: 't' is not namespace.name"),
        (["--format=iceberg", "--table=n.t"], "--checkpoint: missing"),
    ],
)
def test_what_cannot_be_is_refused_with_its_flag(flags: list[str], line: str) -> None:
    with pytest.raises(StartError) as caught:
        parse([*ARCHIVE, *flags])
    assert str(caught.value).startswith(line)


def test_a_package_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StartError, match=r"^--format: 'delta' needs deltalake: pip install 'nsquark\[delta"):
        options_of("--format=delta", "--output=o")


def test_a_table_may_be_anywhere_and_so_may_its_checkpoint() -> None:
    options = options_of("--format=delta", "--output=s3://b/o", "--checkpoint=hdfs://h/c")
    assert (options.is_table, options.output, options.checkpoint) == (True, "s3://b/o", "hdfs://h/c")
    options = options_of("--manifest", "--output=file:///data/o")
    assert (options.output, options.checkpoint) == ("/data/o", "/data/o.checkpoint")
    # these are sinks of Spark's, with jars
    assert not options_of("--format=delta", "--output=s3a://b/o", "--exact-files=false").is_table


def test_options_of_files_are_told_from_those_of_the_store() -> None:
    given = {"compression": "zstd", "compression_level": "9", "AWS_REGION": "eu"}
    assert file_options(given) == {"compression": "zstd", "compression_level": 9}
    assert store_options(given) == {"AWS_REGION": "eu"}
