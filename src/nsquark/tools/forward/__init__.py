"""What nsq_to_nsq and nsq_to_http share: choice of target, status lines, start and stop."""
