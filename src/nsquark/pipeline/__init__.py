"""`nsq_to_spark`, the pipeline: topics into files and back, rolled up, deduplicated, queried with SQL."""
