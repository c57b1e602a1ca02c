"""The demo: three agents review Python source over the bus, while things go wrong."""
