"""The gateway: tasks and messages from programs in any language, by HTTP, SSE, WebSocket and MCP.

`gateway.Gateway` is what every door calls; `credentials` says who may; `tasks` are rows in the inbox's database
(`consumers.processes.tasks`).
"""
