"""Audit: a record of what passed over the bus, in a database, that shows afterwards whether it was changed."""
