"""What lies where on this machine: the hosts' /opt/ml, channels on their way there, and results on their way home."""
