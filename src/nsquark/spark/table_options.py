"""The options of a table that `CREATE TABLE … USING nsq` has made.

Spark tells a Python data source the options of a table only when it asks for the table's columns, at CREATE
TABLE. A query on the table gets the columns, with their metadata, and the options of the query alone. So the
options are noted in the metadata of a column, and Spark's catalog keeps them there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from .columns import COLUMNS_OF_NSQD
from .errors import OptionError
from .options import ALL_NAMES, EXCLUSIVE_NAMES

_KEY: Final = "nsq.options"  # in a column's metadata
_GIVEN_PREFIX: Final = "option."
_NEVER_NOTED: Final = "auth.secret"


def options_of_creation(given: Mapping[str, str]) -> dict[str, str] | None:
    """The options of the table that is being created; None if this is not about a new table.

    Spark hands over OPTIONS twice, with and without a prefix, and TBLPROPERTIES and properties of its own
    among them. TBLPROPERTIES count where they have the name of an option.
    Raises OptionError for an option that a table cannot keep.
    """
    named = {name.lower(): value for name, value in given.items()}
    if "provider" not in named:
        return None
    known = {*(name.lower() for name in ALL_NAMES), "path"}
    options = {name: value for name, value in named.items() if name in known}
    for name, value in named.items():
        if name.startswith(_GIVEN_PREFIX):
            options[name.removeprefix(_GIVEN_PREFIX)] = value
    if _NEVER_NOTED in options:
        raise OptionError(
            _NEVER_NOTED,
            "a table does not keep it, since every user that sees the table's columns would see it; "
            f"give it with the query: SELECT … FROM t WITH (`{_NEVER_NOTED}` = '…')",
        )
    return options


def note_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema of a new table, with its options noted at one of its columns."""
    names = [name for name in schema.names if name in COLUMNS_OF_NSQD] or schema.names
    fields = [
        StructField(each.name, each.dataType, each.nullable, {_KEY: json.dumps(dict(options))})
        if each.name == names[0]
        else each
        for each in schema.fields
    ]
    return StructType(fields)


def options_of_table(schema: StructType) -> dict[str, str]:
    """The options of the table whose columns these are; empty if they are not those of a table."""
    return _noted_at(schema.fields)


def options_of_written_table(schema: StructType) -> dict[str, str]:
    """The options of the table that rows of this schema are inserted into; empty if Spark does not tell them.

    Spark leaves the metadata of the rows' own columns in place if their names and types are those of the
    table. A note may therefore be that of the table that the rows come from. So a note counts at a column
    that only nsqd fills: a row that has a value there is refused, and a column that the INSERT leaves out has
    the metadata of the table that is written.
    """
    return _noted_at([field for field in schema.fields if field.name in COLUMNS_OF_NSQD])


def _noted_at(fields: Iterable[StructField]) -> dict[str, str]:
    for field in fields:
        noted = (field.metadata or {}).get(_KEY)
        if noted is not None:
            return {str(name): str(value) for name, value in json.loads(noted).items()}
    return {}


def complete_options(
    given: Mapping[str, str], noted: Mapping[str, str], names: tuple[str, ...]
) -> dict[str, str]:
    """The options of a query, completed by those of its table, as far as these are among `names`.

    What the query says counts. A table has the options for reading and for writing, so it may have others.
    """
    given_names = {name.lower() for name in given}
    groups = [{name.lower() for name in group} for group in EXCLUSIVE_NAMES]
    replaced = given_names.union(*(group for group in groups if group & given_names))
    known = {name.lower() for name in names}
    return {
        **{name: value for name, value in noted.items() if name in known and name not in replaced},
        **given,
    }


def has_addresses(given: Mapping[str, str]) -> bool:
    """Whether a query says where the nsqds are. Then it has nothing to do with a table."""
    names = {name.lower() for name in given}
    return any(name in names for name in EXCLUSIVE_NAMES[0])


def topic_of_table(noted: Mapping[str, str]) -> str:
    """The topic that a table reads; empty if it reads several, or if there is no table."""
    topic = noted.get("subscribe", noted.get("topic", "")).strip()
    return "" if set(topic) & set("*?,") else topic
