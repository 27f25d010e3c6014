"""`trainshed watch`: a run in the terminal."""
