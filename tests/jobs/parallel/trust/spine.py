"""Cases of the table that `make test` runs."""

SPINE: tuple[str, ...] = ()
