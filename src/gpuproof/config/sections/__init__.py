"""The sections of a recipe, a file each."""
