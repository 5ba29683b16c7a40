"""The files that are shipped: their kinds, what nsquark has for them, and writing one whole or not at all."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from nsquark.cli.flags import StartError
from nsquark.gotext import format_os_error

ZIP: Final = ".zip"
# How tarfile opens the file for each ending.
_GZIP: Final[dict[str, Any]] = {"mode": "w:gz", "compresslevel": 6}
TAR_MODES: Final[dict[str, dict[str, Any]]] = {".tar": {"mode": "w"}, ".tar.gz": _GZIP, ".tgz": _GZIP}


def archive_kind(flag: str, path: str) -> str:
    """The ending of the name, which says what the file is. Raises StartError."""
    for ending in (ZIP, *TAR_MODES):
        if path.endswith(ending) and Path(path).name != ending:
            return ending
    raise StartError(f"--{flag}: {path!r} ends with none of {', '.join((ZIP, *TAR_MODES))}")


def is_environment(path: str) -> bool:
    """Whether the file is an environment, and not a zip of modules."""
    return not path.endswith(ZIP)


def own_files() -> Iterator[tuple[str, Path]]:
    """The files of nsquark and of `pyspark_nsq`: their paths within site-packages, and where they are.

    They are found without an import, which would load Spark. pip lists none of an editable installation.
    """
    for name in ("nsquark", "pyspark_nsq"):
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise StartError(f"the package {name} is not installed")
        folder = Path(spec.submodule_search_locations[0])
        for source in sorted(folder.rglob("*")):
            if source.is_file() and "__pycache__" not in source.parts:
                yield str(source.relative_to(folder.parent)), source


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to. The file gets its name when the block has ended well. Raises StartError."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        os.replace(partial, path)
    except OSError as error:
        raise StartError(f"--output: {str(path)!r}: {format_os_error(error)}") from None
    finally:
        partial.unlink(missing_ok=True)
