"""What a run should do: YAML and CLI arguments in, one validated and frozen `RunConfig` out."""
