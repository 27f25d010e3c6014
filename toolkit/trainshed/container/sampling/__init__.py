"""Samples this host while its ranks run: CPUs, memory, disks, network, GPUs, processes (docs/profiler.md).

system_watch takes part in the run and owns the process; sampler is what that process does; readings measures, gpus the
GPUs; sample_files keeps the files within their bound.
"""
