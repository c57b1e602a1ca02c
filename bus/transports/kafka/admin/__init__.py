"""Topics and groups of a Kafka cluster: reading their state, and changing it to the wanted one."""
