"""Dead letters: their records, their states, sending them back, putting them away, and why they died."""
