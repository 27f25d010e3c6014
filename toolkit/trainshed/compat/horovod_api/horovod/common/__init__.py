"""Parts that Horovod's frameworks share: its exceptions."""
