"""Settings: their schema, where values come from, and loading them."""
