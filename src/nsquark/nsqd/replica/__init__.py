"""A node on several machines: a warm copy that follows its changes, and the rules of replica groups."""
