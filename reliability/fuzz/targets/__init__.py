"""One module a target; each has a `TARGET`."""
