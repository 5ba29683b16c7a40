"""Compiles the kernel, and nothing else: everything that can be said without code is in pyproject.toml."""

from Cython.Build import cythonize
from setuptools import Extension, setup

KERNEL = "src/nsquark/kernel"

[kernel] = cythonize(
    Extension(
        "nsquark.kernel.fast",
        sources=[f"{KERNEL}/fast.pyx"],
        depends=[f"{KERNEL}/crc32c.h"],
        include_dirs=[KERNEL],
        extra_compile_args=["-O3"],
    ),
    language_level=3,
)
# Without a C compiler the install goes on, and the pure twin does the kernel's work. Said here because
# cythonize drops it when it is said to Extension.
kernel.optional = True

setup(ext_modules=[kernel])
