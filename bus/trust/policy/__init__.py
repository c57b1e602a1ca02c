"""The policy: who may send, handle and approve what. Rules, their decision, and the file they are written in."""
