"""What goes wrong between agents although every message is valid: anti-patterns in types, handlers and traffic."""
