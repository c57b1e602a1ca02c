"""From fetched records to queued deliveries: the gates, and room for what passed them."""
