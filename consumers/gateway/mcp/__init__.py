"""The MCP door: agents of the bus as tools for Claude and other MCP clients, at `/mcp` and over stdio.

`door.mcp_parts` is what a gateway mounts, `stdio.serve_stdio` what `sealbus serve mcp` runs. Both serve the same tools
over a `TaskClient`. Only `door` and `stdio` may be imported without the extra `mcp`.
"""
