"""`trainshed ui`: a web page over the runs of this machine, for the person who started it alone. Needs the extra `ui`."""
