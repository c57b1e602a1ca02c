"""`sealbus publish`."""
