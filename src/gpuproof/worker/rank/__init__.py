"""One rank of a case: its identity and records, and how it fails and exits."""
