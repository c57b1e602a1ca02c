"""Schemas of payload types: as JSON Schema, TypeScript and AsyncAPI, and whether a new version breaks an older one."""
