"""The demo: agents that review Python source, with nothing but the embedded log."""
