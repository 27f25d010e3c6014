"""Amazon's training toolkit as scripts inside a container see it, served by trainshed."""
