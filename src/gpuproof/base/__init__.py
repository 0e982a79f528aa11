"""What all other parts use: errors, units, files, groups, spans, redaction, plug-in registry."""
