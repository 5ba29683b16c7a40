"""What nsqd tells about itself: /stats, statsd, /metrics, its health."""
