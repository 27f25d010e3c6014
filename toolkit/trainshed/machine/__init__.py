"""The operating system: processes, signals, streams, ports, hardware, cgroups, archives."""
