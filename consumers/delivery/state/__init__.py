"""The state of a worker: partitions, deliveries, lanes, the commit frontier and the in-flight window."""
