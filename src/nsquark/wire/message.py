"""A message as a client got it: the kernel's, under the name the wire gives it."""

from nsquark.kernel import Delivery

__all__ = ["Delivery"]
