"""Settings: their schema, their sources, and loading them."""
