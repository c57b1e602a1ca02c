"""`sealbus dlq`: dead letters on the command line."""
