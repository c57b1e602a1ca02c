"""Lines of JSON as messages: cut a stream into lines, and make each a payload of a type, or a foreign message."""
