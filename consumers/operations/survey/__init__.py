"""Operations: what is going on in a namespace, looked at once and shown by many doors: doctor, exporter, top."""
