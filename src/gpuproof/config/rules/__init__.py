"""Every refusal of a recipe: keys that are fine alone and cannot hold together, or not where it is to run."""
