"""The subcommands of `nsq_to_spark`, a module each."""
