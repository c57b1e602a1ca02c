"""Payload types for others: as JSON Schema, as TypeScript with zod, as an AsyncAPI document."""
