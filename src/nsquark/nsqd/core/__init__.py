"""The broker's core: publishes come in, a turn stores them, channels deliver them to consumers."""
