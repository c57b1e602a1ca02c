"""The worker and its process: wiring, the loop, start-up checks, draining, metrics, signals."""
