"""Make the smallest log that still has a finding, and what a maintainer needs to reproduce it."""
