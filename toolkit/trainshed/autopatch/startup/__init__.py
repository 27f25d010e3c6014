"""A folder for PYTHONPATH; this file makes packaging take it along."""
