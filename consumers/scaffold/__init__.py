"""`sealbus new`: a project that works at once."""
