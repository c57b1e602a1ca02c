"""How contracts change: the registry folder of published schemas, and what a change of a schema asks for."""

__all__: list[str] = []
