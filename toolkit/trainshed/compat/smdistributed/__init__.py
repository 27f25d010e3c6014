"""Amazon's namespace, served by trainshed."""
