"""Location of the old toolkit's framework."""
