"""What an author of an agent writes with: the App, its handlers, and its tests."""
