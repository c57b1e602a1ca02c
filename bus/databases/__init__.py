"""Users' databases, in which inbox and outbox keep their rows: opening them, and what their failures mean."""
