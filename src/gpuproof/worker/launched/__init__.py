"""Programs that launchers start on other hosts, by name: `a-b` is the module `a_b` in here."""
