"""Keys: who has which, where they lie, and what signs and verifies with them."""
