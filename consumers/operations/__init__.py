"""Tools for operators: survey, audit, lineage, lint, console."""
