"""Records on their way to the log: batches, room in bytes, topics made at first use."""
