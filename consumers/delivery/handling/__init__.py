"""Running handlers: slots, claims, exclusive runs, threads, and driving a lane to its outcome."""
