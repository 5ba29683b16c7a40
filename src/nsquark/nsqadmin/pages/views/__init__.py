"""Pages that show: lists of the cluster, one topic, channel or node, messages, pipelines, the search."""
