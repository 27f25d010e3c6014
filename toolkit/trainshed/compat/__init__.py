"""Other people's module names. The folder itself goes on Python's path, only for a job that asks for one of them."""
