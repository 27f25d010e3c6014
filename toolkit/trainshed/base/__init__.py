"""Tools that know nothing of training: records, errors, files, secrets. Everything else may use them."""
