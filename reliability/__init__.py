"""Commands that try to break nsquark, and say what they tried and what was lost.

One folder a kind of trouble, each with a command of its own: `python -m reliability.crashes --rounds 3000`.
Short runs of each are tests (`tests/reliability/`). `docs/reliability.md` has the promises and the figures.
"""
