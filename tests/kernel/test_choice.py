"""Which twin of the kernel is in use: the compiled one wherever it can be built, the pure one on demand."""

import importlib
import inspect
import os
import shutil
import sysconfig
from pathlib import Path

import pytest

from nsquark import kernel

PURE_ASKED_FOR = os.environ.get("NSQUARK_PURE", "") not in ("", "0")


def why_it_cannot_be_compiled() -> str | None:
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if not any(shutil.which(name) for name in (compiler, "cc", "gcc", "clang")):
        return "no C compiler"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "no Python.h"
    return None


@pytest.mark.skipif(PURE_ASKED_FOR, reason="NSQUARK_PURE asks for the pure kernel")
def test_the_compiled_kernel_loads_wherever_it_can_be_built() -> None:
    if not kernel.COMPILED and (reason := why_it_cannot_be_compiled()):
        pytest.skip(reason)
    importlib.import_module("nsquark.kernel.fast")  # its ImportError says more than COMPILED does
    assert kernel.COMPILED


@pytest.mark.skipif(not PURE_ASKED_FOR, reason="NSQUARK_PURE is not set")
def test_the_pure_kernel_is_used_when_asked_for() -> None:
    assert not kernel.COMPILED
    assert kernel.crc32c.__module__ == "nsquark.kernel.pure"


@pytest.mark.skipif(not kernel.COMPILED, reason="the compiled kernel is not in use")
def test_the_twins_have_the_same_functions() -> None:
    pure = importlib.import_module("nsquark.kernel.pure")
    fast = importlib.import_module("nsquark.kernel.fast")
    in_pure = {name for name, _ in inspect.getmembers(pure, inspect.isfunction) if not name.startswith("_")}
    in_fast = {name for name, _ in inspect.getmembers(fast, inspect.isroutine) if not name.startswith("_")}
    assert in_pure == in_fast
    assert in_pure <= set(kernel.__all__)
