"""`sealbus topics`."""
