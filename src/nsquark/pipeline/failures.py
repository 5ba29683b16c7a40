"""What Spark reports over pages, in the one line that says it."""

from __future__ import annotations

import re

from .options import in_flags

# The last line of one of our own tracebacks, wherever it was raised.
_OURS = re.compile(r"^\s*(?:pyspark\.\S+: )?nsquark\.[\w.]+: (.+)$", re.MULTILINE)
_CAUSED = re.compile(r"^\s*(?:Caused by: )?[\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
# Py4J names the method that was called, and then what went wrong.
_CALLED = re.compile(r"An error occurred while calling .*\n: (?:[\w.$]+: )?(.+)")
_LONGEST = 500


def one_line(error: BaseException) -> str:
    """What to tell of an error that came out of Spark."""
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return in_flags(ours[-1].strip())
    called = _CALLED.match(text)
    if called:
        return in_flags(called[1].strip())[:_LONGEST]
    caused = _CAUSED.findall(text) if "Traceback" in text else []
    lines = caused[-1:] or [line.strip() for line in text.splitlines() if line.strip()]
    return in_flags(lines[0])[:_LONGEST] if lines else type(error).__name__
