"""Hours of steady load with restarts: memory, descriptors and latency must stay flat.

`python -m reliability.soak --minutes 30` samples an nsqd while publishers and consumers run, draws what it
has seen as an SVG, and judges the slopes.
"""
