"""Code shared by the verbs: parameter types, printing, progress, lines of JSON."""
