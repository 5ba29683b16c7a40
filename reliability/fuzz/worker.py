"""One target under atheris, in a process of its own: libFuzzer ends its process when it finds something.

    python -m reliability.fuzz.worker TARGET [flags and folders of libFuzzer]

The environment has NSQUARK_PURE=1, so that the code under test is Python, which atheris can instrument.
"""

from __future__ import annotations

import sys


def main() -> None:
    import atheris  # type: ignore[import-untyped]  # the extra `fuzz`

    name = sys.argv[1]
    with atheris.instrument_imports(include=["nsquark"], enable_loader_override=False):
        from nsquark import kernel
        from reliability.fuzz.target import load, silence

        silence()
        target = load(name)
        for seed in target.seeds():  # what is imported late is instrumented, too
            target.run(seed)
    if kernel.COMPILED:
        sys.exit("the compiled kernel cannot be instrumented: set NSQUARK_PURE=1")

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        made: bytes = atheris.Mutate(data, most)
        return made if target.repair is None or seed % 4 == 0 else target.repair(made)[:most]

    def run(data: bytes) -> None:
        target.run(data)

    arguments = [sys.argv[0], *sys.argv[2:]]
    if target.repair is None:
        atheris.Setup(arguments, run)
    else:
        atheris.Setup(arguments, run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
