"""How the job ended: exit status, failure and success files, run record."""
