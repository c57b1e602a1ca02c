"""What a worker holds: partitions, deliveries, lanes, the commit frontier and the in-flight window."""
