"""Tools that are not about training: records, errors, files, secrets. All other parts may use them."""
