"""From a payload and its options to a sealed record."""
