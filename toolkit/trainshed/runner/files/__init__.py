"""One run: what lies where, code and channels on their way in, results on their way home, hosts watched."""
