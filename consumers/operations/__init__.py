"""What operators see with and mend with: survey, audit, lineage, lint, console."""
