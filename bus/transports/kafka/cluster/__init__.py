"""One client for questions about the cluster: topics, offsets, groups, and the cause if the cluster does not answer."""
