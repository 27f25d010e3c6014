"""From what a person wrote (a job file, flags, a CreateTrainingJob request) to a checked `Job`."""
