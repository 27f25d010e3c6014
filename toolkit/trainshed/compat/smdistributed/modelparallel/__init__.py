"""Amazon's model parallel library (v1), served by `trainshed.parallel` on CPU and GPU.

The version is below 1.10, from which on transformers expects state that is translated between two naming schemes: here a
state has the names of the user's own modules.
"""

__version__ = "1.9.0"
