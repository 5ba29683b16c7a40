"""The HTTP side of nsqd: its routes, their arguments, and the guard before them."""
