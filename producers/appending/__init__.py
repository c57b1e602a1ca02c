"""Records on their way to the log: batches, a budget of bytes, topics created at first use."""
