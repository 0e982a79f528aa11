"""What a run should do: YAML and command-line words in, one validated and frozen `RunConfig` out."""
