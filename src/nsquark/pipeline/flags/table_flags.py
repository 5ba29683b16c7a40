"""The flags of tables: Delta, Iceberg, and Parquet files with manifests. Nothing here needs Spark."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from nsquark.cli.flags import BOOL, STRING, flag

from .options import Common, local_path, refuse

PARQUET, DELTA, ICEBERG = "parquet", "delta", "iceberg"
_PACKAGES: Final = {DELTA: "deltalake", ICEBERG: "pyiceberg"}
# The options of the format that are about files. The others are about the store or the catalog.
_FILE_OPTIONS: Final = {"compression": str, "compression_level": int}


@dataclass(repr=False, eq=False)
class TableFlags(Common):
    """The flags of a subcommand that can write to a table."""

    manifest: bool = flag(
        BOOL,
        False,
        "exact files anywhere (s3://, gs://, hdfs://, …): manifests say which files count",
    )
    table: str = flag(STRING, "", "with --format=iceberg: the table, as namespace.name")
    catalog: str = flag(STRING, "default", "with --format=iceberg: the catalog, as pyiceberg names it")


def check_table(options: Any) -> None:
    """Check the flags of a table, which has no other files beside it."""
    if options.format == ICEBERG:
        if options.output:
            raise refuse("output", "not with --format=iceberg: the catalog knows where --table is")
        if "." not in options.table.strip("."):
            raise refuse("table", f"{options.table!r} is not namespace.name: the Iceberg table to write to")
    else:
        _check_folder(options)
    if options.manifest and options.format != PARQUET:
        raise refuse("manifest", f"not with --format={options.format}: manifests are for parquet")
    package = _PACKAGES.get(options.format, "")
    if package and importlib.util.find_spec(package) is None:
        raise refuse("format", f"{options.format!r} needs {package}: pip install 'nsquark[{options.format}]'")
    if options.format == PARQUET and (unknown := options.format_opt.keys() - _FILE_OPTIONS.keys()):
        raise refuse("format-opt", f"{min(unknown)!r} is none of {', '.join(_FILE_OPTIONS)}")
    file_options(options.format_opt)


def _check_folder(options: Any) -> None:
    if not options.output:
        raise refuse("output", "missing: the folder to write to")
    if options.table:
        raise refuse("table", "only with --format=iceberg")
    scheme = urlsplit(options.output).scheme
    if scheme in ("", "file"):
        options.output = str(local_path("output", options.output))
    elif not options.checkpoint:
        raise refuse("checkpoint", f"missing: it is Spark's, which may not know {options.output!r}")


def file_options(format_opt: dict[str, str]) -> dict[str, Any]:
    """The options of Parquet files. Raises StartError."""
    found: dict[str, Any] = {}
    for name, kind in _FILE_OPTIONS.items():
        if name in format_opt:
            try:
                found[name] = kind(format_opt[name])
            except ValueError:
                raise refuse("format-opt", f"{name}={format_opt[name]!r} is no whole number") from None
    if "compression" in found:
        import pyarrow as pa

        if found["compression"] != "none" and not _is_codec(pa, found["compression"]):
            raise refuse("format-opt", f"compression={found['compression']!r} is not known")
    return found


def _is_codec(pa: Any, name: str) -> bool:
    try:
        return bool(pa.Codec.is_available(name))
    except ValueError:
        return False


def store_options(format_opt: dict[str, str]) -> dict[str, str]:
    """The options of the store of a Delta table, or of the catalog of an Iceberg table."""
    return {name: value for name, value in format_opt.items() if name not in _FILE_OPTIONS}
