"""What all tests share: the kernel is named in the header, and property tests are not timed."""

import os

from hypothesis import settings

import nsquark.kernel

# With two test processes on two cores a single example may wait its turn for longer than any deadline.
settings.register_profile("nsquark", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("nsquark")


def pytest_report_header() -> str:
    return f"nsquark kernel: {'compiled' if nsquark.kernel.COMPILED else 'pure'}"
