"""Fuzzing: bytes that no careful client sends and no undamaged disk holds, guided by the code they reach.

A target feeds bytes to one parser, or to the recovery of one file, and checks more than that nothing raises:
feeding the whole gives the same as feeding it byte by byte, the compiled kernel the same as its twin in plain
Python, recovering twice the same as once. `targets/` has one module each.

    python -m reliability.fuzz                     all targets, some minutes, with atheris
    python -m reliability.fuzz commands --minutes 60
    python -m reliability.fuzz --replay            the corpus and seeded mutations of it, without atheris
    python -m reliability.fuzz.coverage            the lines that the corpus reaches; NSQUARK_PURE=1
    python -m reliability.fuzz.sockets             connections to an nsqd process, mutated on the way
"""
