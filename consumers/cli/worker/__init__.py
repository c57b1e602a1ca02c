"""`sealbus worker`."""
