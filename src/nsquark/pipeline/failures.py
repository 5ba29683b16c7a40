"""The one line of an error report of Spark that tells what went wrong."""

from __future__ import annotations

import re

from .options import with_flag_names

# The last line of a traceback that ends in an error of nsquark, from whichever process.
_OURS = re.compile(r"^\s*(?:pyspark\.\S+: )?nsquark\.[\w.]+: (.+)$", re.MULTILINE)
_CAUSED = re.compile(r"^\s*(?:Caused by: )?[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
# Py4J names the method that was called, and tells what went wrong on the next line.
_CALLED = re.compile(r"An error occurred while calling .*\n: (?:[\w.$]+: )?(.+)")
_LONGEST = 500


def one_line(error: BaseException) -> str:
    """One line for an error that Spark raised, with flags in place of options."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return with_flag_names(ours[-1].strip())
    called = _CALLED.match(text)
    if called:
        return with_flag_names(called[1].strip())[:_LONGEST]
    caused = _CAUSED.findall(text) if "Traceback" in text else []
    lines = caused[-1:] or [line.strip() for line in text.splitlines() if line.strip()]
    return with_flag_names(lines[0])[:_LONGEST] if lines else type(error).__name__
