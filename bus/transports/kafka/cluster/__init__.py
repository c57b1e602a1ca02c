"""One client for questions about the cluster: topics, offsets, groups, and what is wrong where it does not answer."""
