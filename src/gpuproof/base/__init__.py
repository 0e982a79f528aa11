"""The basis of all other parts: errors, units, files, groups, spans, redaction, plug-in registry."""
