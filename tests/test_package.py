"""The doorplate: what `import nsquark` shows, and how little it costs."""

import subprocess
import sys
from importlib.metadata import version

import nsquark
from nsquark.version import VERSION


def test_the_version_has_one_source() -> None:
    assert nsquark.__version__ == VERSION == version("nsquark")


def test_importing_the_package_loads_the_version_and_nothing_else() -> None:
    code = "import sys; old = set(sys.modules); import nsquark; print(*sorted(set(sys.modules) - old))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == ["nsquark", "nsquark.version"]
