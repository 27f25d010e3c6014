"""What Horovod's frameworks share: its exceptions."""
