"""Figures that nsqd publishes about itself: /stats, statsd, /metrics, its health."""

from nsquark.kernel import choose_sources

choose_sources(__path__)
