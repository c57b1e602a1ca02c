"""Topics: their names, and which of them an application needs."""
