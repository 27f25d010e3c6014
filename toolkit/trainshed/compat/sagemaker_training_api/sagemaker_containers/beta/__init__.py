"""Where the old toolkit kept its framework."""
