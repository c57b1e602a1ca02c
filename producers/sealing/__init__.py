"""Turn a payload and its options into a sealed record."""
