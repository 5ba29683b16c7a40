"""Whether nsqadmin's own dependencies are installed: a broker host need not have them."""

from __future__ import annotations

import importlib.util

from nsquark.cli.flags import StartError

_NEEDED = ("starlette", "uvicorn", "jinja2")


def require() -> None:
    """Raises StartError if nsqadmin cannot run here."""
    missing = [module for module in _NEEDED if importlib.util.find_spec(module) is None]
    if missing:
        raise StartError(f"nsqadmin needs {', '.join(missing)}: pip install 'nsquark[admin]'")
