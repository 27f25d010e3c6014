"""Commands around single jobs and images: init, check-image, compare, the search for a batch size."""
