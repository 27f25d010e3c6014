"""Horovod's API for PyTorch, served by torch.distributed's process groups, for scripts that import it.

The launcher adds the folder above this one to the end of PYTHONPATH, for jobs that ask for Horovod or MPI, where the real
package is not installed. What is served: docs/distributions.md. Behaviour: Horovod 0.28, by its published documentation.
"""

from .unserved import install

__version__ = "0.28.1"  # the one whose API this is; scripts compare with it

install(__name__)
