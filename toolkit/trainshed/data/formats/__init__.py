"""How records lie in files: one module a format; `table` lists them and finds the one of a channel; `equal` reads blocks."""
