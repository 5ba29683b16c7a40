"""Batches that applications put aside, to be published as a whole and once."""
