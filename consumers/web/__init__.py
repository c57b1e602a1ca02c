"""What every program of sealbus that listens on HTTP shares: its socket, its connections, its guard, its refusals."""
