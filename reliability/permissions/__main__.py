"""`python -m reliability.permissions [--markdown]`."""

from __future__ import annotations

import argparse
import asyncio
import sys

from .page import markdown, tried


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m reliability.permissions", description="What each client may do."
    )
    parser.add_argument("--markdown", action="store_true", help="as docs/reference/permissions.md")
    arguments = parser.parse_args()
    result = asyncio.run(tried())
    if arguments.markdown:
        sys.stdout.write(markdown(result))
    else:
        for table in result:
            sys.stdout.writelines(table.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
