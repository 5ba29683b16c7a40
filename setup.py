"""Compiles the kernel, and nothing else: everything that can be said without code is in pyproject.toml."""

from Cython.Build import cythonize
from setuptools import Extension, setup

KERNEL = "src/nsquark/kernel"

modules = cythonize(
    [
        Extension(
            f"nsquark.kernel.{name}",
            sources=[f"{KERNEL}/{name}.pyx"],
            depends=[f"{KERNEL}/bigendian.h", f"{KERNEL}/crc32c.h"],
            include_dirs=[KERNEL],
            extra_compile_args=["-O3"],
        )
        for name in ("fast", "fast_intake", "fast_log", "fast_delivery", "fast_poll")
    ],
    include_path=["src"],
    language_level=3,
)
# Without a C compiler the install goes on, and the pure twin does the kernel's work. Said here because
# cythonize drops it when it is said to Extension.
for module in modules:
    module.optional = True

setup(ext_modules=modules)
