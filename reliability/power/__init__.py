"""Power cuts, simulated: what the disk could hold after one, and whether nsqd keeps its promises on it."""
