"""The life of one message in a worker: received, queued in its lane, handled, settled. Retries, crash protection and
the inbox have packages of their own."""
