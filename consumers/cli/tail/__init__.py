"""`sealbus tail`."""
