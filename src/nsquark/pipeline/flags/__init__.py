"""The flags of `nsq_to_spark` and the checks on them. Nothing here needs Spark."""
