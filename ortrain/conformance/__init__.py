"""The conformance suite: cases stored as data, run through each facade, or through a port in another language over JSON lines."""
