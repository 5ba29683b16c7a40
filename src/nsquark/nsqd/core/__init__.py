"""The broker's core: publishes come in, a turn stores them, channels deliver them to consumers."""

from nsquark.kernel import choose_sources

choose_sources(__path__)
