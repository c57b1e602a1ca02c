"""From fetched records to queued deliveries: the gates, and room for the accepted ones."""
