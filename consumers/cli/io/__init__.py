"""What verbs share: parameter types, printing, progress, lines of JSON."""
