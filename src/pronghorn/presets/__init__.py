"""Named default values, one file per family of envs: the numbers that belong to an env live here and nowhere else."""
