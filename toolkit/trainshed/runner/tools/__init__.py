"""Commands around single jobs and images: init, check-image, predict, the search for a batch size."""
