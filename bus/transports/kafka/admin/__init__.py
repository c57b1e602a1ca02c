"""Topics and groups of a Kafka cluster: what is, what is wanted, and changing the one into the other."""
