"""A zip of the modules that executors import, for `--py-files`.

Python imports no compiled module from a zip, so the kernel runs as plain Python there. The workers' Python
must have pyarrow.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final

from .files import own_files, replacing

_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the same modules make the same zip
_FILE_MODE: Final = 0o644 << 16


def write_library(path: Path) -> int:
    """Write the zip; how many modules it has. Raises StartError."""
    count = 0
    with replacing(path) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as library:
        for name, source in own_files():
            if source.suffix != ".py":
                continue
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = _FILE_MODE
            library.writestr(entry, source.read_bytes())
            count += 1
    return count
