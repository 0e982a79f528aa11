"""What launchers start on other hosts, each by its word: `a-b` is the module `a_b` in here."""
