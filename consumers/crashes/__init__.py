"""Poison protection without an inbox: what each process runs is noted in files that outlive it, and deaths are
counted."""
