"""nsq_to_file: topics to files. A message is finished when the disk holds it."""
