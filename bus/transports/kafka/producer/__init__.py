"""Appending: calls become batches, batches of a partition go one after the other, and a producer that failed is
replaced."""
