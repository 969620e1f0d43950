"""Processes killed in the middle, full disks, runs beside runs: afterwards the tables are those of an undisturbed run."""
