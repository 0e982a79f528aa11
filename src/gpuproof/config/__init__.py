"""What a run is asked to do: YAML and command-line words in, one checked and frozen `RunConfig` out."""
