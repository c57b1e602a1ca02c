"""Appending: calls become batches, batches of one partition are sent in order, and a failed producer is replaced."""
