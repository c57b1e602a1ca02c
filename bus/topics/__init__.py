"""Topics: their names, and which ones an application needs."""
