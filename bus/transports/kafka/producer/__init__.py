"""Appending: calls become batches, and a producer that failed is replaced.

Batches of a partition go one after the other.
"""
