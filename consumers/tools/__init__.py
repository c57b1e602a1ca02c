"""Tools: functions of an app, and requests to other agents, that a model may call.

A tool is declared with `@app.tool` or `app.handoff_tool`. `App.tools` is the registry of both: it describes them to a
model, and calls them within a run: policy, then step, then taint.
"""
