"""Compiles modules, and nothing else: everything that can be said without code is in pyproject.toml."""

import os
from runpy import run_path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

KERNEL = "src/nsquark/kernel"

# The C goes to build/, away from the sources. Every core translates a module at a time.
CORES = os.cpu_count() or 1
OPTIONS = {"include_path": ["src"], "build_dir": "build/cython", "language_level": 3, "nthreads": CORES}


class BuildModules(build_ext):
    """Compiles as many modules at a time as there are cores, and says which."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or CORES

    def build_extension(self, ext: Extension) -> None:
        path = self.get_ext_fullpath(ext.name)
        if self.force or newer_group([*ext.sources, *ext.depends], path, "newer"):
            # Should the new one not compile, the old one must not be taken for it.
            if os.path.exists(path):
                os.remove(path)
            print(f"compiling {ext.name}", flush=True)
        super().build_extension(ext)


def extension(module: str, suffix: str) -> Extension:
    return Extension(
        module,
        sources=[f"src/{module.replace('.', '/')}{suffix}"],
        depends=[f"{KERNEL}/bigendian.h", f"{KERNEL}/crc32c.h", "setup.py"],
        include_dirs=[KERNEL],
        # Python's own flags ask for -g, which a compiler spends a fifth of its time on.
        extra_compile_args=["-O3", "-g0"],
    )


def modules() -> list[Extension]:
    # The modules to compile are listed where they are chosen, too. The package cannot be imported here.
    listed = run_path(f"{KERNEL}/single_source.py")
    found = [
        *cythonize([extension(module, ".pyx") for module in listed["CYTHON_MODULES"]], **OPTIONS),
        *cythonize(
            [extension(module, ".py") for module in listed["PYTHON_MODULES"]],
            # The .pxd alone gives types: an annotation `int` means Python's. A None where an object is
            # declared raises, as it does in Python.
            compiler_directives={"annotation_typing": False, "nonecheck": True},
            **OPTIONS,
        ),
    ]
    # Without a C compiler the install goes on, and everything runs as plain Python. This is said here because
    # cythonize drops it when it is said to Extension.
    for module in found:
        module.optional = True
    return found


# Under its name only: the processes that translate modules may import this file again.
if __name__ == "__main__":
    # `make` compiles before it installs, and sets this so that installing does not compile again.
    compiled_already = os.environ.get("NSQUARK_COMPILED_ALREADY") == "1"
    setup(ext_modules=[] if compiled_already else modules(), cmdclass={"build_ext": BuildModules})
