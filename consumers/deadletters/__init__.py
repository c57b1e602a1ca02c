"""Dead letters: their records and states, redriving, purging, and the diagnosis of their causes."""
