"""Tasks: work that comes from outside through the gateway, each a row that every replica sees."""
