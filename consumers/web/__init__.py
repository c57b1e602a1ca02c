"""What every program of sealbus that listens on HTTP shares: its socket, its guard, its refusals."""
