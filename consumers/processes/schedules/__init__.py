"""Schedules: handlers that run at times, each due time once, whatever crashes."""
