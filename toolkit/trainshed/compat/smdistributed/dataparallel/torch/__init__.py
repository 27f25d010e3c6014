"""`torch_smddp` registers the backend of version 2; `distributed` and `parallel` are the interface of version 1."""
