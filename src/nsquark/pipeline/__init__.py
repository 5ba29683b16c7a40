"""`nsq_to_spark`, the pipeline: archives, replays, rolls up, deduplicates and queries topics."""
