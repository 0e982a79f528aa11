"""What every part stands on: errors, units, files, groups, spans, redaction and the registry of plug-ins."""
