"""Inside the container, around the user's program: the six steps of `train`."""
