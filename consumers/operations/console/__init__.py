"""The console: the same survey, letters, conversations and approvals as on the command line, in a browser.

Pages are rendered here and hold no rules; `consumers.operations.console.access` decides who may ask for what.
"""
