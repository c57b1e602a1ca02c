"""One message's life in a worker, in this order: received, kept in its lane, handled, settled. Retries, crashes and the
inbox stand beside it."""
