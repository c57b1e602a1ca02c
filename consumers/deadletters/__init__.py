"""Dead letters: their records and states, redriving, purging, and the diagnosis of why they died."""
