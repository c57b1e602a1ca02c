"""A server of the Model Context Protocol over stdio, with one tool; each call is a line in the file of its argument."""

from __future__ import annotations

from pathlib import Path

try:
    from mcp.server import MCPServer as Server
except ImportError:  # before mcp 2
    from mcp.server.fastmcp import FastMCP as Server

server = Server("files")


@server.tool()
def append(text: str) -> str:
    """Append a line to the file named by the text."""
    with Path(text).open("a", encoding="utf-8") as file:
        file.write("called\n")
    return "appended"


if __name__ == "__main__":
    server.run(transport="stdio")
