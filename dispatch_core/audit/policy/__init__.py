"""The audit policy: a YAML file with limits per topic pattern, and the limits that are shipped."""
