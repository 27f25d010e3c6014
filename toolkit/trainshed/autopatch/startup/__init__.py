"""A folder for PYTHONPATH; this file makes it part of the package."""
