"""`sealbus verify`."""
