"""Operations: a survey of a namespace, used by doctor, exporter, console and top."""
