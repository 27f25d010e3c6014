"""The training compiler, seen from outside the script: which one, with which variables, and where its cache lives."""
